// The training loop itself, in this process, with a model of four numbers.
#include "common/safetensors/safetensors.h"
#include "tests/unit/trainer/devices.h"
#include "tests/unit/trainer/paragraphs.h"
#include "worker/trainer/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sys/socket.h>

namespace nsa::train {
namespace {

using wire::RankExit;

class Notes : public MetricsSink {
public:
  void step(const wire::RankStep& s) override { steps.push_back(s); }
  void evaluation(const wire::RankEvaluation& e) override { evaluations.push_back(e); }
  void non_finite(const wire::RankNonFinite& e) override { non_finite_events.push_back(e); }
  std::vector<wire::RankStep> steps;
  std::vector<wire::RankEvaluation> evaluations;
  std::vector<wire::RankNonFinite> non_finite_events;
};

class TrainerTest : public ::testing::Test {
protected:
  TrainerTest() {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "The moon is over the river, and the river is under the moon.\n\n";
    dataset_ = test::paragraphs(folder_, text);
    spec_.train.steps = 6;
    spec_.train.sequence_length = 32;
    spec_.train.learning_rate = 1e-2;
    spec_.eval.at_end = false;
    spec_.checkpoint.at_end = false;
  }
  // The number of threads can be set once per process.
  static runtime::Runtime& cpu() {
    static const std::unique_ptr<runtime::Runtime> runtime =
        *runtime::make_cpu_runtime({.device = spec::Device::kCpu});
    return *runtime;
  }

  // Trains. `loss` gets the weights and the number of the call.
  RankResult<Finished> run(std::function<at::Tensor(const at::Tensor&, int)> loss) {
    at::Tensor weights = at::ones({4}).set_requires_grad(true);
    FlatState state({{"weights", weights, at::full({4}, 2.0), true}}, 1 << 20, kSyncScalars);
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    shim_.reset(pair[0]);
    link::Link link{UniqueFd(pair[1])};
    link_ = &link;
    PhaseClock clock(*progress::Page::create(0, 1));
    clock_ = &clock;
    auto collectives = comm::make_single_rank_collectives();
    const data::BatchShape shape{.sequence_length = 32, .micro_batch = 1, .accumulate = 1};
    data::LoaderOptions options;
    options.sources = {{dataset_}};
    options.shape = shape;
    options.allocate = [this](size_t bytes) { return runtime_->allocate_host(bytes); };
    auto loader = *data::Loader::open(std::move(options), std::nullopt);
    const auto evaluation = *data::EvaluationSet::open({{dataset_}}, shape, 2);
    auto checkpointer =
        *Checkpointer::open(folder_.path(), spec_.checkpoint, {}, 0, state, *runtime_, link,
                            runtime_->allocate_host(SnapshotMaker::bytes_of(state)));
    std::vector<std::unique_ptr<MetricsSink>> sinks;
    sinks.push_back(std::make_unique<Notes>());
    notes_ = static_cast<Notes*>(sinks[0].get());
    int calls = 0;
    std::optional<StagedLoss> staged;
    if (graphs_) staged.emplace([](const auto&) {}, [&] { return loss(weights, ++calls); });
    Trainer trainer({spec_,
                     0,
                     folder_.path(),
                     *runtime_,
                     *collectives,
                     link,
                     clock,
                     state,
                     [&](const auto&) { return loss(weights, ++calls); },
                     [&](const auto& batch) {
                       return loss(weights, ++calls).expand({batch->rows, shape.sequence_length});
                     },
                     staged,
                     graphs_or_nothing_,
                     *loader,
                     &evaluation,
                     *checkpointer,
                     sinks,
                     nullptr,
                     gates_,
                     nullptr,
                     kernels_,
                     {},
                     selection_},
                    {});
    auto finished = trainer.run();
    ended_in_ = clock.phase();
    seen_ = *notes_;
    checkpoints_ = manifest::list(folder_.path() / "checkpoints", true);
    return finished;
  }
  // Sends a request as the shim does. Returns when the link has received it.
  template <class Request>
  void ask(wire::MessageType type, const Request& request, bool link::Requests::* latched) {
    const std::string frame = *wire::encode(type, request);
    EXPECT_EQ(::send(shim_.get(), frame.data(), frame.size(), 0), ssize_t(frame.size()));
    for (int i = 0; i < 6000 && !(link_->pending_requests().*latched); ++i)
      ::usleep(5000);
    EXPECT_TRUE(link_->pending_requests().*latched);
  }

  // Returns what the rank has told the shim about kernels. Call it after run().
  std::string told_of_kernels() {
    wire::FrameDecoder decoder;
    char chunk[65536];
    for (ssize_t got; (got = ::recv(shim_.get(), chunk, sizeof chunk, 0)) > 0;)
      decoder.feed({chunk, static_cast<size_t>(got)});
    std::string told;
    for (auto frame = decoder.next(); frame && *frame; frame = decoder.next())
      if ((*frame)->type == static_cast<uint8_t>(wire::MessageType::kRankKernels))
        told += wire::decode_message(**frame)->body.at("what").get<std::string>() + "\n";
    return told;
  }

  test::TemporaryFolder folder_;
  spec::RunSpec spec_;
  std::shared_ptr<const dataset::Dataset> dataset_;
  runtime::Runtime* runtime_ = &cpu();
  TwoStepsInFlight two_{cpu()};
  LayerFigures gates_, selection_;
  KernelCheck* kernels_ = nullptr;
  bool graphs_ = false, graphs_or_nothing_ = false;
  UniqueFd shim_;
  link::Link* link_ = nullptr;
  PhaseClock* clock_ = nullptr; // null except during training
  progress::Phase ended_in_ = progress::Phase::kStartUp;
  Notes* notes_ = nullptr;
  Notes seen_;
  std::vector<manifest::Found> checkpoints_;
};

at::Tensor square(const at::Tensor& weights, int) {
  return weights.square().mean();
}
at::Tensor heldout_is_nan(const at::Tensor& weights, int) {
  const double factor = at::GradMode::is_enabled() ? 1.0 : std::numeric_limits<double>::quiet_NaN();
  return weights.square().mean().mul(factor);
}

TEST_F(TrainerTest, TrainsWithTwoStepsInFlightAsWithOne) {
  ASSERT_TRUE(run(square));
  const auto one = seen_.steps;
  ASSERT_EQ(one.size(), 6u);
  EXPECT_LT(one.back().loss, one.front().loss);
  runtime_ = &two_;
  ASSERT_TRUE(run(square));
  ASSERT_EQ(seen_.steps.size(), 6u);
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(seen_.steps[i].loss, one[i].loss);
}

// The gates belong to the steps of the record, and arrive with the step's other values. There is
// one read per step, and the host enqueues the next step before it waits for it.
TEST_F(TrainerTest, GatesComeWithTheirStepAndNobodyWaitsForThem) {
  runtime_ = &two_;
  int passes = 0;
  gates_.names = {"gates/0/compressed", "", "gates/0/sliding"};
  gates_.take = [&] { return at::full({3}, static_cast<double>(passes)); };
  const auto counted = [&](const at::Tensor& weights, int) {
    if (at::GradMode::is_enabled()) ++passes;
    return weights.square().mean();
  };
  ASSERT_TRUE(run(counted));
  EXPECT_EQ(two_.events, "rrtrtrtrtrtt");
  ASSERT_EQ(seen_.steps.size(), 6u);
  for (const wire::RankStep& step : seen_.steps) {
    const auto mean = static_cast<double>(step.step);
    EXPECT_EQ(step.gates,
              (std::map<std::string, double>{{"0/compressed", mean}, {"0/sliding", mean}}));
  }

  passes = 0;
  two_.events.clear();
  spec_.train.log_interval_steps = 4;
  gates_.take = [&] {
    const double none = std::numeric_limits<double>::quiet_NaN();
    return at::full({3}, passes < 6 ? static_cast<double>(passes) : none);
  };
  ASSERT_TRUE(run(counted));
  EXPECT_EQ(two_.events, "rrtrtrtrtrtt");
  ASSERT_EQ(seen_.steps.size(), 3u); // steps 1, 4 and 6
  EXPECT_EQ(seen_.steps[1].gates.at("0/sliding"), 4);
  EXPECT_TRUE(seen_.steps[2].gates.empty()) << "JSON has no word for NaN";
}

// Between two measurements passes are not watched, and records have no figures of layers.
TEST_F(TrainerTest, FiguresOfLayersComeWithTheFirstRecordBehindTheirInterval) {
  spec_.train.log_interval_steps = 2;
  spec_.metrics.layer_interval_steps = 3;
  std::vector<bool> watched;
  selection_.names = {"selected_distance/0", "selected_overlap/0"};
  selection_.watch = [&](bool on) { watched.push_back(on); };
  selection_.take = [&] { return at::tensor({96.0F, NAN}); };
  ASSERT_TRUE(run(square));
  EXPECT_EQ(watched, (std::vector<bool>{true, false, false, true, false, false}));
  ASSERT_EQ(seen_.steps.size(), 4u); // steps 1, 2, 4 and 6
  for (const wire::RankStep& step : seen_.steps) {
    const bool measured = step.step == 1 || step.step == 4;
    EXPECT_EQ(step.selected_distance, (measured ? std::map<std::string, double>{{"0", 96.0}}
                                                : std::map<std::string, double>{}));
    EXPECT_TRUE(step.selected_overlap.empty()) << "JSON has no word for NaN";
  }
  watched.clear();
  spec_.metrics.layer_interval_steps = 0;
  ASSERT_TRUE(run(square));
  EXPECT_EQ(watched, std::vector<bool>(6, false));
  EXPECT_TRUE(seen_.steps.front().selected_distance.empty());
}

// A step's time begins at the end of the step before it on the device. After an evaluation or a
// checkpoint it begins at its own start. It does not depend on when the host looks.
TEST_F(TrainerTest, AStepLastsAsLongAsTheDeviceTakes) {
  SlowDevice device(cpu());
  runtime_ = &device;
  spec_.train.steps = 9;
  spec_.eval.interval_steps = 3;
  spec_.checkpoint.interval_steps = 5;
  const auto seconds = [&](double host, double work) {
    EXPECT_TRUE(run([&](const at::Tensor& weights, int) {
      const bool training = at::GradMode::is_enabled();
      device.spend(host);
      device.enqueue(training ? work : 100);
      return weights.square().mean();
    }));
    std::vector<double> each;
    for (const wire::RankStep& step : seen_.steps) {
      EXPECT_NEAR(step.tokens_per_second * step.step_seconds, 32, 1e-9);
      each.push_back(step.step_seconds);
    }
    return each;
  };
  const auto are = [](const std::vector<double>& each) {
    return ::testing::Pointwise(::testing::DoubleNear(1e-9), each);
  };
  // The host needs an eighth of the device's time. That time counts only when the device has
  // nothing else to do.
  EXPECT_THAT(seconds(0.125, 1), are({1.125, 1, 1, 1.125, 1, 1.125, 1.125, 1, 1}));
  EXPECT_THAT(seconds(2, 1), are({3, 2, 2, 3, 2, 3, 3, 2, 2})) << "the device waits for the host";
  spec_.train.log_interval_steps = 4; // records of 1, 4, 8 and 9
  EXPECT_THAT(seconds(0.125, 1), are({1.125, 3.125 / 3, 4.25 / 4, 1}));
}

// Evaluations, checkpoints and records work between replayed steps as they do between launched
// ones.
TEST_F(TrainerTest, TrainsFromGraphsAsFromLaunches) {
  runtime_ = &two_;
  spec_.train.steps = 8;
  spec_.eval.interval_steps = 3;
  spec_.checkpoint.interval_steps = 4;
  int launched_calls = 0, replayed_calls = 0;
  ASSERT_TRUE(run([&](const at::Tensor& weights, int call) {
    launched_calls = call;
    return square(weights, call);
  }));
  const Notes launched = seen_;
  graphs_ = true;
  ASSERT_TRUE(run([&](const at::Tensor& weights, int call) {
    replayed_calls = call;
    return square(weights, call);
  }));
  ASSERT_EQ(seen_.steps.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(seen_.steps[i].loss, launched.steps[i].loss);
    EXPECT_EQ(seen_.steps[i].gradient_norm, launched.steps[i].gradient_norm);
  }
  ASSERT_EQ(seen_.evaluations.size(), launched.evaluations.size());
  for (size_t i = 0; i < seen_.evaluations.size(); ++i)
    EXPECT_EQ(seen_.evaluations[i].loss, launched.evaluations[i].loss);
  EXPECT_EQ(checkpoints_.size(), 2u);
  EXPECT_EQ(launched_calls - replayed_calls, 5)
      << "two steps launched, one recorded, five replayed";
}

// With "auto" nsad is told to continue without graphs. With "on" the next attempt would fail in the
// same way.
TEST_F(TrainerTest, AFailedRecordingIsAUsersErrorOnlyWhereGraphsAreInsistedOn) {
  runtime_ = &two_;
  two_.records = false;
  graphs_ = true;
  for (const bool insisted : {false, true}) {
    graphs_or_nothing_ = insisted;
    const auto finished = run(square);
    ASSERT_FALSE(finished);
    EXPECT_EQ(finished.error().exit, insisted ? RankExit::kUsage : RankExit::kGraphs);
    EXPECT_THAT(finished.error().error.what, ::testing::HasSubstr("no recorder on purpose"));
    EXPECT_THAT(finished.error().error.next, ::testing::HasSubstr("toggles.cuda.graphs"));
  }
}

// When the request arrives, its step is still in progress. Then the loop notices the earlier stop
// and ends.
TEST_F(TrainerTest, ACheckpointAskedForInTheLastStepIsWritten) {
  runtime_ = &two_;
  const auto finished = run([&](const at::Tensor& weights, int call) {
    if (call == 2)
      ask(wire::MessageType::kStopRequest, wire::StopRequest{.checkpoint = false},
          &link::Requests::stop);
    if (call == 3)
      ask(wire::MessageType::kCheckpointRequest, wire::CheckpointRequest{},
          &link::Requests::checkpoint);
    return square(weights, call);
  });
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->reason, wire::FinishReason::kStopped);
  EXPECT_EQ(finished->step, 3u);
  ASSERT_EQ(checkpoints_.size(), 1u);
  EXPECT_EQ(checkpoints_[0].step, 3u);
}

// In the shut-down phase a rank would be past peers that still gather the state, and would look
// like one that skipped a collective.
TEST_F(TrainerTest, TheLastCheckpointComesBeforeTheShutDown) {
  NotesCopies device(cpu());
  runtime_ = &device;
  spec_.checkpoint.at_end = true;
  bool copied = false;
  device.at_copy = [&] {
    const auto seconds = clock_->take_seconds();
    EXPECT_TRUE(copied || seconds.contains("results"));
    EXPECT_FALSE(seconds.contains("shut-down"));
    copied = true;
  };
  ASSERT_TRUE(run(square));
  EXPECT_TRUE(copied);
  EXPECT_EQ(ended_in_, progress::Phase::kShutDown);
}

TEST_F(TrainerTest, HeldOutLossThatIsNotFiniteIsReported) {
  spec_.eval.interval_steps = 2;
  ASSERT_TRUE(run(heldout_is_nan));
  ASSERT_EQ(seen_.non_finite_events.size(), 3u);
  EXPECT_EQ(seen_.non_finite_events[0].step, 2u);
  EXPECT_EQ(seen_.non_finite_events[0].what, "held-out loss");
  EXPECT_EQ(seen_.non_finite_events[0].action, NonFiniteAction::kReport);
  EXPECT_EQ(seen_.evaluations.size(), 3u);
  EXPECT_EQ(seen_.steps.size(), 6u) << "there was no update to leave out";
}

// The test makes these counts of kernels. Training counts the loss, and an evaluation counts a
// norm. `taken` says which backend each call counts.
class CountsOfTest {
public:
  explicit CountsOfTest(std::function<choice::Backend(bool training, int call)> taken)
      : taken_(std::move(taken)) {
    plan_.kernels = {{.part = choice::Part::kNorm, .backend = choice::Backend::kPortable},
                     {.part = choice::Part::kLoss, .backend = choice::Backend::kPortable}};
  }
  KernelCheck check() {
    return {plan_, [this] { return counts_; }};
  }
  at::Tensor operator()(const at::Tensor& weights, int call) {
    const bool training = at::GradMode::is_enabled();
    count(training ? choice::Part::kLoss : choice::Part::kNorm, taken_(training, call));
    if (training) count(choice::Part::kNorm, choice::Backend::kPortable);
    return square(weights, call);
  }

private:
  void count(choice::Part part, choice::Backend backend) {
    ++counts_[static_cast<size_t>(part)][static_cast<size_t>(backend)];
  }
  std::function<choice::Backend(bool, int)> taken_;
  choice::KernelPlan plan_;
  choice::KernelCounts counts_{};
};

TEST_F(TrainerTest, OtherKernelsThanPlannedFailTheAttempt) {
  using choice::Backend;
  struct Case {
    const char* name;
    std::function<Backend(bool, int)> taken;
    size_t steps; // completed before the failure
    const char* what;
  };
  const std::vector<Case> cases{
      {"as planned", [](bool, int) { return Backend::kPortable; }, 6, ""},
      {"in the first step",
       [](bool, int call) { return call == 1 ? Backend::kAten : Backend::kPortable; }, 0,
       "layers.loss was computed by aten, and the plan says portable"},
      {"in a later step",
       [](bool, int call) { return call == 2 ? Backend::kAten : Backend::kPortable; }, 4,
       "layers.loss was computed by aten, and the plan says portable"},
      {"in an evaluation",
       [](bool training, int) { return training ? Backend::kPortable : Backend::kFlash; }, 4,
       "layers.norm was computed by flash, and the plan says portable"}};
  spec_.eval.interval_steps = 4;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    CountsOfTest counts(c.taken);
    KernelCheck check = counts.check();
    kernels_ = &check, seen_ = {};
    const auto ended = run(std::ref(counts));
    EXPECT_EQ(seen_.steps.size(), c.steps);
    EXPECT_EQ(ended.has_value(), *c.what == '\0');
    if (ended) continue;
    EXPECT_EQ(ended.error().exit, RankExit::kToggleMismatch);
    EXPECT_THAT(ended.error().error.what, ::testing::HasSubstr(c.what));
    EXPECT_THAT(ended.error().error.next, ::testing::HasSubstr("toggles.layers.kernels"));
    EXPECT_THAT(told_of_kernels(), ::testing::HasSubstr(c.what));
  }
}

TEST_F(TrainerTest, OtherKernelsAreToldAndTrainingGoesOnWhereTheRunFileSaysSo) {
  CountsOfTest counts([](bool, int call) {
    return call == 1 || call > 4 ? choice::Backend::kAten : choice::Backend::kPortable;
  });
  KernelCheck check = counts.check();
  kernels_ = &check, spec_.eval.interval_steps = 4, spec_.toggles["kernels.check"] = "warn";
  ASSERT_TRUE(run(std::ref(counts)));
  EXPECT_EQ(seen_.steps.size(), 6u);
  EXPECT_THAT(told_of_kernels(), ::testing::ContainsRegex("layers.loss was computed by aten.*\n"
                                                          ".*layers.norm was computed by aten"));
  spec_.toggles["kernels.check"] = "fail";
  EXPECT_FALSE(run(std::ref(counts)));
}

TEST_F(TrainerTest, HeldOutLossThatIsNotFiniteFollowsTheRule) {
  spec_.eval.interval_steps = 2;
  spec_.train.non_finite = spec::NonFinite::kStop;
  const auto stopped = run(heldout_is_nan);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().exit, RankExit::kNonFinite);
  EXPECT_THAT(stopped.error().error.what, ::testing::HasSubstr("held-out loss of step 2"));
  EXPECT_EQ(seen_.steps.size(), 2u);

  spec_.train.non_finite = spec::NonFinite::kRollBack;
  spec_.checkpoint.interval_steps = 3; // the evaluation of step 4 finds the checkpoint of step 3
  spec_.eval.interval_steps = 4;
  ASSERT_TRUE(run(heldout_is_nan));
  ASSERT_EQ(seen_.non_finite_events.size(), 1u);
  EXPECT_EQ(seen_.non_finite_events[0].action, NonFiniteAction::kRollBack);
  ASSERT_EQ(seen_.steps.size(), 6u);
  // Step 4 was undone, so step 5 begins where step 4 began.
  EXPECT_EQ(seen_.steps[4].loss, seen_.steps[3].loss);
  EXPECT_TRUE(seen_.steps[4].phase_seconds.contains("restore"));
}

// evaluator_test.cpp tests the contents of the files.
TEST_F(TrainerTest, HeldOutTokensAreKeptStepByStep) {
  spec_.eval.interval_steps = 3;
  spec_.eval.token_losses = true;
  ASSERT_TRUE(run(square));
  ASSERT_EQ(seen_.evaluations.size(), 2u);
  for (const wire::RankEvaluation& evaluation : seen_.evaluations) {
    const auto path = folder_.path() / "evaluations" / manifest::folder_name(evaluation.step) /
                      "rank-0.safetensors";
    const auto file = safetensors::Reader::open(path);
    ASSERT_TRUE(file) << file.error().what;
    std::vector<float> losses(64);
    ASSERT_TRUE(file->read("loss", safetensors::DataType::kF32, {2, 32},
                           std::as_writable_bytes(std::span(losses))));
    for (const float loss : losses)
      EXPECT_NEAR(loss, evaluation.loss, 1e-6);
  }
}

TEST_F(TrainerTest, WhereTokenLossesCannotBeKeptTrainingGoesOn) {
  spec_.eval.at_end = true;
  spec_.eval.token_losses = true;
  folder_.write("evaluations", "a file where the folder would be");
  ASSERT_TRUE(run(square));
  EXPECT_EQ(seen_.steps.size(), 6u);
  EXPECT_EQ(seen_.evaluations.size(), 1u);
}

} // namespace
} // namespace nsa::train
