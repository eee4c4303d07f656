// What training decides apart from tensors: schedule, buckets, the non-finite rule.
#include "common/spec/schedule.h"
#include "tests/support/temporary_folder.h"
#include "worker/link/flight_record_writer.h"
#include "worker/link/phase_clock.h"
#include "worker/rules/bucket_plan.h"
#include "worker/rules/non_finite.h"
#include "worker/rules/precision.h"
#include "worker/telemetry/metrics_log.h"
#include "worker/telemetry/tensorboard_sink.h"

#include "common/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

spec::TrainSection section(const std::string& schedule) {
  spec::TrainSection t;
  t.steps = 100;
  t.warmup_steps = 10;
  t.learning_rate = 1e-3;
  t.final_learning_rate_ratio = 0.1;
  t.schedule = *spec::choice_from<spec::Schedule>(schedule);
  return t;
}

TEST(Precision, IsWhatModeAndDeviceAllow) {
  using Mode = spec::PrecisionMode;
  using Compute = spec::Compute;
  const std::string slow = "this CPU has no fast BF16";
  struct Case {
    Mode mode;
    Compute compute;
    std::string why_slow;
    bool bf16, note;
  };
  for (const Case& c : {Case{Mode::kMaster, Compute::kAuto, "", true, false},
                        {Mode::kMaster, Compute::kAuto, slow, false, true},
                        {Mode::kMaster, Compute::kBf16, slow, true, true},
                        {Mode::kMaster, Compute::kFp32, "", false, false},
                        {Mode::kFp32, Compute::kAuto, "", false, false},
                        {Mode::kStochasticRounding, Compute::kAuto, "", true, false},
                        {Mode::kStochasticRounding, Compute::kAuto, slow, true, true},
                        {Mode::kPure, Compute::kBf16, "", true, true}}) {
    const auto p = choose_precision({c.mode, c.compute}, c.why_slow);
    ASSERT_TRUE(p) << name_of(c.mode) << ' ' << name_of(c.compute);
    EXPECT_EQ(p->bf16, c.bf16) << name_of(c.mode) << ' ' << name_of(c.compute);
    EXPECT_EQ(!p->note.empty(), c.note)
        << name_of(c.mode) << ' ' << name_of(c.compute) << ": " << p->note;
  }
  EXPECT_EQ(choose_precision({Mode::kStochasticRounding, Compute::kAuto}, "")->mode,
            PrecisionMode::kStochasticRounding);
  EXPECT_EQ(choose_precision({Mode::kPure, Compute::kAuto}, "")->mode, PrecisionMode::kPure);
  for (const auto& [mode, compute] : {std::pair{Mode::kStochasticRounding, Compute::kFp32},
                                      {Mode::kPure, Compute::kFp32},
                                      {Mode::kFp32, Compute::kBf16}})
    EXPECT_FALSE(choose_precision({mode, compute}, "")) << name_of(mode) << ' ' << name_of(compute);
}

TEST(Schedule, WarmUpThenDown) {
  for (const char* name : {"cosine", "linear"}) {
    const auto t = section(name);
    EXPECT_DOUBLE_EQ(learning_rate(t, 1), 1e-4) << "the first step already trains";
    EXPECT_DOUBLE_EQ(learning_rate(t, 10), 1e-3);
    EXPECT_NEAR(learning_rate(t, 55), 1e-3 * (0.1 + 0.9 * 0.5), 1e-15) << "half-way down";
    EXPECT_NEAR(learning_rate(t, 100), 1e-4, 1e-15);
    for (uint64_t s = 11; s <= 100; ++s)
      EXPECT_LT(learning_rate(t, s), learning_rate(t, s - 1));
  }
  EXPECT_DOUBLE_EQ(learning_rate(section("constant"), 100), 1e-3);
  EXPECT_NE(learning_rate(section("cosine"), 30), learning_rate(section("linear"), 30));
}

TEST(Schedule, WithoutWarmUpStartsAtTheTop) {
  auto t = section("cosine");
  t.warmup_steps = 0;
  EXPECT_NEAR(learning_rate(t, 1), 1e-3, 1e-6);
  t.steps = 1;
  EXPECT_TRUE(std::isfinite(learning_rate(t, 1)));
}

TEST(BucketPlan, CoversEveryParameterOnceInReverse) {
  const std::vector<size_t> counts = {1000, 3, 17, 4096, 1, 64};
  const BucketPlan plan = plan_buckets(counts, 4096 * sizeof(float), 4);
  size_t expected = 0;
  for (size_t i = counts.size(); i-- > 0;) {
    EXPECT_EQ(plan.slots[i].offset, expected);
    EXPECT_EQ(plan.slots[i].count, counts[i]);
    EXPECT_EQ(plan.slots[i].offset % kSlotAlignment, 0u);
    expected += (counts[i] + 15) / 16 * 16;
    const auto& bucket = plan.buckets[plan.slots[i].bucket];
    EXPECT_GE(plan.slots[i].offset, bucket.begin);
    EXPECT_LE(plan.slots[i].offset + counts[i], bucket.end);
  }
  EXPECT_EQ(plan.parameter_elements, expected);
  EXPECT_EQ(plan.sync_begin, expected);
  // Buckets tile the gradient buffer, and the sync scalars ride with the last.
  size_t at = 0, parameters = 0;
  for (const auto& bucket : plan.buckets) {
    EXPECT_EQ(bucket.begin, at);
    at = bucket.end;
    parameters += bucket.parameters;
  }
  EXPECT_EQ(at, plan.gradient_elements);
  EXPECT_EQ(plan.gradient_elements, expected + 16);
  EXPECT_EQ(parameters, counts.size());
  EXPECT_EQ(plan.buckets.size(), 2u);
}

TEST(BucketPlan, SharesAreEqualAndTogetherEverything) {
  const std::vector<size_t> counts = {1000, 3, 17, 4096, 1, 64};
  for (const size_t shards : {1, 2, 3, 8}) {
    const BucketPlan plan = plan_buckets(counts, 64 * sizeof(float), 5, shards);
    EXPECT_GT(plan.buckets.size(), 2u);
    size_t expected = 0;
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      for (size_t s = 0; s < shards; ++s) {
        const Range one = shard_of(plan, b, {s, shards});
        EXPECT_EQ(one.begin, expected);
        EXPECT_EQ(one.begin % kSlotAlignment, 0u);
        EXPECT_EQ(one.count(), shard_of(plan, b, {0, shards}).count());
        expected = one.end;
      }
      EXPECT_EQ(expected, plan.parameters_of(b).end);
    }
    EXPECT_EQ(expected, plan.parameter_elements);
    EXPECT_EQ(plan.sync_begin, plan.parameter_elements) << "the sync scalars are nobody's shard";
    for (size_t i = 0; i < counts.size(); ++i) {
      const Range bucket = plan.parameters_of(plan.slots[i].bucket);
      EXPECT_GE(plan.slots[i].offset, bucket.begin);
      EXPECT_LE(plan.slots[i].offset + counts[i], bucket.end);
    }
  }
}

TEST(BucketPlan, OneBigBucketOrOneEach) {
  EXPECT_EQ(plan_buckets({10, 10, 10}, size_t{1} << 30, 2).buckets.size(), 1u);
  EXPECT_EQ(plan_buckets({10, 10, 10}, 1, 2).buckets.size(), 3u);
}

TEST(NonFinite, ActsByRuleAndStopsPastTheLimit) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  auto t = section("cosine");
  t.non_finite = spec::NonFinite::kSkip;
  t.non_finite_limit = 2;
  NonFiniteRule rule(t);
  EXPECT_EQ(rule.observe(2.0, 1.0), NonFiniteAction::kNone);
  EXPECT_EQ(rule.observe(kNan, 1.0), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.what(), "loss");
  EXPECT_EQ(rule.observe(2.0, std::numeric_limits<double>::infinity()), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.what(), "gradient");
  EXPECT_EQ(rule.observe(2.0, 1.0), NonFiniteAction::kNone) << "a finite step ends the streak";
  EXPECT_EQ(rule.observe(kNan, kNan), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.observe(kNan, kNan), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.observe(kNan, kNan), NonFiniteAction::kStop);
  EXPECT_EQ(rule.total(), 5);
  t.non_finite = spec::NonFinite::kRollBack;
  EXPECT_EQ(NonFiniteRule(t).observe(kNan, 1), NonFiniteAction::kRollBack);
  EXPECT_EQ(NonFiniteRule(t, 2).observe(kNan, 1), NonFiniteAction::kStop)
      << "the streak survives a restart";
  t.non_finite = spec::NonFinite::kStop;
  EXPECT_EQ(NonFiniteRule(t).observe(kNan, 1), NonFiniteAction::kStop);
}

TEST(PhaseClock, PageAndSecondsComeFromTheSameCalls) {
  auto page = progress::Page::create(0, 1);
  auto view = progress::Page::open(UniqueFd(::dup(page->fd())), false);
  PhaseClock clock(std::move(*page));
  clock.begin_step(3, 100);
  clock.enter(progress::Phase::kForward, 1);
  EXPECT_EQ(view->read_host()->phase, progress::Phase::kForward);
  EXPECT_EQ(view->read_host()->micro_step, 1u);
  clock.enter(progress::Phase::kBackward, 1);
  EXPECT_EQ(clock.writer().enqueue(progress::CollectiveKind::kGradient, 0, 4096), 1u);
  EXPECT_EQ(view->read_host()->enqueued, 1u);
  EXPECT_EQ(view->read_collectives().find(1)->step, 3u);
  EXPECT_EQ(clock.position(), (progress::StepPosition{3, 2, progress::Phase::kBackward}));
  const auto seconds = clock.take_seconds();
  EXPECT_GT(seconds.at("forward"), 0.0);
  EXPECT_TRUE(clock.take_seconds().count("forward") == 0);
}

TEST(MetricsLog, LinesAreKeyedByAttemptAndStep) {
  std::string folder = (fs::temp_directory_path() / "nsa-metrics-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const fs::path path = fs::path(folder) / "metrics.jsonl";
  for (AttemptNumber attempt : {1, 2}) {
    auto log = MetricsLog::open(path, attempt);
    wire::RankStep step;
    step.step = 5;
    step.loss = attempt == 2 ? std::numeric_limits<double>::quiet_NaN() : 2.5;
    (*log)->step(step);
  }
  const std::string text = *read_file(path);
  const auto first = nlohmann::json::parse(text.substr(0, text.find('\n')));
  const auto second = nlohmann::json::parse(text.substr(text.find('\n') + 1));
  EXPECT_EQ(first["kind"], "step");
  EXPECT_EQ(first["loss"], 2.5);
  EXPECT_EQ(second["attempt"], 2);
  EXPECT_TRUE(second["loss"].is_null());
  fs::remove_all(folder);
}

TEST(MetricsLog, ATornLastLineStaysAlone) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.write("metrics.jsonl", "{\"step\": 1}\n{\"ste");
  (*MetricsLog::open(path, 2))->step({});
  const std::string text = *read_file(path);
  EXPECT_TRUE(text.starts_with("{\"step\": 1}\n{\"ste\n{"));
  EXPECT_NO_THROW(nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2))));
}

// The shim asks; this thread, which trains, does nothing for it.
TEST(FlightRecordWriter, AnswersByItselfAndSurvivesARecordThatCannotBeRead) {
  test::TemporaryFolder folder;
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd shim(pair[0]);
  link::Link link{UniqueFd(pair[1])};
  std::atomic<int> asked{0};
  FlightRecordWriter writer(link, 3, [&]() -> std::string {
    if (++asked == 1) throw std::runtime_error("the device is gone");
    return R"({"entries":[]})";
  });
  const auto ask = [&] {
    const std::string frame = *wire::encode(wire::MessageType::kCollectivesRequest,
                                            wire::CollectivesRequest{folder.path().string()});
    ASSERT_EQ(::send(shim.get(), frame.data(), frame.size(), 0), ssize_t(frame.size()));
  };
  const auto wait_for = [](auto condition) {
    for (int i = 0; i < 60'000 && !condition(); ++i)
      ::usleep(1000);
    return condition();
  };
  ask();
  ASSERT_TRUE(wait_for([&] { return asked == 1; }));
  ask();
  const fs::path written = folder.path() / "collectives-3.json";
  ASSERT_TRUE(wait_for([&] { return fs::exists(written); }));
  EXPECT_EQ(*read_file(written), R"({"entries":[]})");
}

TEST(TensorBoardSink, WritesWhatItIsGiven) {
  const test::TemporaryFolder folder;
  auto writer = telemetry::TensorBoardWriter::open(folder.path(), 1, 0);
  ASSERT_TRUE(writer);
  const fs::path path = writer->path();
  const auto empty = fs::file_size(path);
  TensorBoardSink sink(std::move(*writer));
  sink.step({});
  const auto with_step = fs::file_size(path);
  sink.evaluation({});
  const auto with_evaluation = fs::file_size(path);
  sink.non_finite({});
  EXPECT_LT(empty, with_step);
  EXPECT_LT(with_step, with_evaluation);
  EXPECT_LT(with_evaluation, fs::file_size(path));
}

} // namespace
} // namespace nsa::train
