// Ranks that stall, die, diverge or get impossible requests. The tests check what their peers and
// the progress page show.
#include "tests/support/temporary_folder.h"
#include "tests/unit/worker/rank_harness.h"

#include "common/base/file.h"
#include "common/manifest/manifest.h"
#include "common/wire/exit_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <sys/mount.h>

namespace nsa::test {
namespace {

namespace fs = std::filesystem;
using progress::Phase;
using ::testing::HasSubstr;
using wire::MessageType;
using wire::RankExit;

class FaultTest : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    shared_ = new TemporaryFolder;
    dataset_ = prepare_text(shared_->path());
  }
  static void TearDownTestSuite() { delete shared_; }

  spec::RunSpec run_with(const std::string& kind, int64_t rank, int64_t step) {
    auto spec = tiny_run(dataset_);
    spec.inject.kind = *spec::choice_from<spec::FaultKind>(kind);
    spec.inject.rank = rank;
    spec.inject.step = step;
    return spec;
  }

  template <class Condition> static bool eventually(Condition holds) {
    for (int i = 0; i < 12'000; ++i) { // two minutes: only a broken program takes so long
      if (holds()) return true;
      ::usleep(10000);
    }
    return false;
  }
  // Waits until a rank's page shows this phase and step.
  static bool reaches(const RankProcess& rank, Phase phase, uint64_t step) {
    return eventually([&] {
      const auto record = rank.page().read_host();
      return record && record->phase == phase && record->step == step;
    });
  }
  static char process_state(pid_t pid) {
    const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    return stat ? (*stat)[stat->rfind(')') + 2] : '?';
  }

  TemporaryFolder folder_;
  static TemporaryFolder* shared_;
  static fs::path dataset_;
};
TemporaryFolder* FaultTest::shared_ = nullptr;
fs::path FaultTest::dataset_;

// Each stall is announced and written to the log before it happens. The culprit's page stops
// changing there. Its peer waits for it in a collective of the same step.
struct Stall {
  const char* kind;
  Phase phase;
};
class StallTest : public FaultTest, public ::testing::WithParamInterface<Stall> {};

TEST_P(StallTest, CulpritStandsStillAndItsPeerWaits) {
  constexpr uint64_t kStep = 4;
  RunHarness run(folder_.path());
  auto ranks = run.launch(run_with(GetParam().kind, 1, kStep));
  const auto injected = ranks[1].wait_message(MessageType::kRankInjected);
  ASSERT_TRUE(injected) << run.log(1, 1);
  EXPECT_EQ(wire::body_as<wire::RankInjected>(injected->body)->step, kStep);
  EXPECT_EQ(*read_file(folder_.path() / "injected.json"),
            std::string("{\"rank\":1,\"step\":4,\"kind\":\"") + GetParam().kind + "\"}\n");
  EXPECT_TRUE(reaches(ranks[1], GetParam().phase, kStep)) << run.log(1, 1);
  EXPECT_TRUE(reaches(ranks[0], Phase::kAllReduce, kStep)) << run.log(1, 0);
  EXPECT_EQ(ranks[0].page().read_device().completed_step, kStep - 1);
  EXPECT_EQ(ranks[1].page().read_device().completed_step, kStep - 1);
  if (std::string(GetParam().kind) == "stop_signal") {
    // The rank sends its message first, and stops when it has been sent.
    EXPECT_TRUE(eventually([&] { return process_state(ranks[1].pid()) == 'T'; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StallTest,
                         ::testing::Values(Stall{"stop_signal", Phase::kForward},
                                           Stall{"mutex_deadlock", Phase::kForward},
                                           Stall{"spin", Phase::kForward},
                                           Stall{"endless_kernel", Phase::kForward},
                                           Stall{"data_stall", Phase::kData}),
                         [](const auto& info) { return std::string(info.param.kind); });

// The rank that skips a collective runs ahead. It waits in a collective of the next step, and its
// peer in one of this step. Both wait forever, and no data are mixed.
TEST_F(FaultTest, SkippedCollectiveLeavesRanksInDifferentSteps) {
  RunHarness run(folder_.path());
  auto ranks = run.launch(run_with("skip_collective", 0, 4));
  ASSERT_TRUE(ranks[0].wait_message(MessageType::kRankInjected));
  EXPECT_TRUE(reaches(ranks[0], Phase::kAllReduce, 5)) << run.log(1, 0);
  EXPECT_TRUE(reaches(ranks[1], Phase::kAllReduce, 4)) << run.log(1, 1);
  // A rank enters the phase before it counts the collective.
  EXPECT_TRUE(eventually([&] {
    const auto ahead = ranks[0].page().read_host(), behind = ranks[1].page().read_host();
    return ahead && behind && ahead->enqueued == behind->enqueued;
  })) << "a step ahead with no more collectives entered: that is how it is told apart";
  EXPECT_EQ(ranks[1].page().read_device().completed_step, 3u);
}

TEST_F(FaultTest, RestartedAttemptRunsClean) {
  RunHarness run(folder_.path());
  auto ranks = run.launch(run_with("kill", 1, 2), {.attempt = 2});
  for (auto& rank : ranks)
    EXPECT_EQ(rank.wait_exit(), 0);
  EXPECT_FALSE(fs::exists(folder_.path() / "injected.json"));
}

TEST_F(FaultTest, PeersOfADeadRankLeaveAndNameIt) {
  for (const auto& [kind, status] : std::map<std::string, int>{
           {"kill", 256 + SIGKILL}, {"segfault", 256 + SIGSEGV}, {"exit", 1}}) {
    auto spec = run_with(kind, 2, 3);
    spec.parallel.ranks = 3;
    RunHarness run(folder_.path() / kind);
    auto ranks = run.launch(spec);
    EXPECT_EQ(ranks[2].wait_exit(), status);
    for (Rank r = 0; r < 2; ++r) {
      EXPECT_EQ(ranks[size_t(r)].wait_exit(), int(RankExit::kPeerLost)) << run.log(1, r);
      const auto errors = ranks[size_t(r)].all<wire::RankError>(MessageType::kRankError);
      ASSERT_EQ(errors.size(), 1u);
      EXPECT_EQ(errors[0].exit_code, int(RankExit::kPeerLost));
      EXPECT_EQ(errors[0].blamed_peer, Rank(2)) << errors[0].what;
    }
  }
}

TEST_F(FaultTest, NonFiniteStepIsSkippedByAll) {
  auto spec = run_with("non_finite", 1, 3);
  spec.train.non_finite = spec::NonFinite::kSkip;
  RunHarness run(folder_.path());
  auto ranks = run.launch(spec);
  for (auto& rank : ranks)
    ASSERT_EQ(rank.wait_exit(), 0) << run.log(1, 0);
  const auto losses = run.losses();
  ASSERT_EQ(losses.size(), 12u);
  for (const auto& [step, loss] : losses)
    EXPECT_EQ(std::isfinite(loss), step != 3) << "step " << step;
  const auto events = ranks[0].all<wire::RankNonFinite>(MessageType::kRankNonFinite);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, 3u);
  EXPECT_EQ(events[0].action, wire::NonFiniteAction::kSkip);
}

TEST_F(FaultTest, NonFiniteStepStopsTheRunByRule) {
  auto spec = run_with("non_finite", 0, 3);
  spec.train.non_finite = spec::NonFinite::kStop;
  RunHarness run(folder_.path());
  auto ranks = run.launch(spec);
  for (auto& rank : ranks)
    EXPECT_EQ(rank.wait_exit(), int(RankExit::kNonFinite)) << run.log(1, 0);
}

TEST_F(FaultTest, NonFiniteStepRollsAllRanksBack) {
  auto spec = run_with("non_finite", 1, 8);
  spec.train.non_finite = spec::NonFinite::kRollBack;
  spec.checkpoint.interval_steps = 5;
  RunHarness run(folder_.path());
  auto ranks = run.launch(spec);
  for (auto& rank : ranks)
    ASSERT_EQ(rank.wait_exit(), 0) << run.log(1, 0);
  EXPECT_THAT(run.log(1, 0), HasSubstr("rolled back"));
  EXPECT_THAT(run.log(1, 0), HasSubstr("step-00000005"));
  const auto told = ranks[0].all<wire::RankRolledBack>(MessageType::kRankRolledBack);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].step, 8u);
  EXPECT_THAT(told[0].folder, ::testing::EndsWith("step-00000005"));
  EXPECT_GT(told[0].seconds, 0);
  // All ranks have the same weights afterwards, or later losses would not agree. The last
  // checkpoint must verify, and a resume from it must be finite.
  const auto choice = manifest::choose_newest_verified(run.checkpoints());
  ASSERT_TRUE(choice.chosen);
  EXPECT_TRUE(choice.chosen->manifest->finite);
  spec.checkpoint.interval_steps = 0;
  RunHarness without(folder_.path() / "without");
  auto lost = without.launch(spec);
  for (auto& rank : lost)
    EXPECT_EQ(rank.wait_exit(), int(RankExit::kNonFinite)) << "nothing to roll back to";
}

TEST_F(FaultTest, FullDiskCostsTheCheckpointAndNotTheRun) {
  const fs::path disk = folder_.path() / "disk";
  fs::create_directories(disk);
  if (::mount("nsa-test", disk.c_str(), "tmpfs", 0, "size=900k") != 0)
    GTEST_SKIP() << "cannot mount a small tmpfs (needs root)";
  auto spec = tiny_run(dataset_);
  spec.parallel.ranks = 1;
  spec.checkpoint.interval_steps = 2;
  spec.checkpoint.keep_last = 100; // more than fit on the disk
  RunHarness run(disk / "run");
  auto ranks = run.launch(spec);
  EXPECT_EQ(ranks[0].wait_exit(), int(RankExit::kCheckpoint)) << "the last one is missing";
  const auto reports = ranks[0].all<wire::RankCheckpoint>(MessageType::kRankCheckpoint);
  ASSERT_GE(reports.size(), 3u);
  EXPECT_EQ(reports.front().error, "");
  EXPECT_THAT(reports.back().error, HasSubstr("No space left"));
  const auto steps = ranks[0].all<wire::RankStep>(MessageType::kRankStep);
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back().step, 12u) << "training went on to its end";
  EXPECT_TRUE(manifest::choose_newest_verified(run.checkpoints()).chosen);
  ::umount2(disk.c_str(), MNT_DETACH);
}

TEST_F(FaultTest, WhatCannotBeIsRefusedWithItsExitCode) {
  auto spec = tiny_run(dataset_);
  spec.parallel.ranks = 1;
  auto exit_of = [&](const spec::RunSpec& s, const LaunchOptions& options,
                     const std::string& says) {
    static int number = 0;
    RunHarness run(folder_.path() / std::to_string(number++));
    auto ranks = run.launch(s, options);
    const int code = ranks[0].wait_exit();
    EXPECT_THAT(run.log(options.attempt, 0), HasSubstr(says));
    return code;
  };
  auto no_data = spec;
  no_data.data.path = (folder_.path() / "absent").string();
  EXPECT_EQ(exit_of(no_data, {}, "absent"), int(RankExit::kData));
  auto small = spec;
  small.model.vocabulary = 100;
  EXPECT_EQ(exit_of(small, {}, "model.vocabulary"), int(RankExit::kUsage));
  auto toggled = spec;
  toggled.toggles["nccl.debug"] = "INFO";
  EXPECT_EQ(exit_of(toggled, {}, "nccl.debug"), int(RankExit::kToggleMismatch));
  EXPECT_EQ(exit_of(toggled, {.environment = {{"NCCL_DEBUG", "INFO"}}}, "finished"), 0);
  EXPECT_EQ(exit_of(spec, {.without_graphs = "attempt 1: no"}, "graphs off (attempt 1: no)"), 0);
  auto dense = spec;
  dense.model.attention = spec::Attention::kDense;
  dense.toggles["attention.dense"] = "cudnn"; // a CPU does not have it
  EXPECT_EQ(exit_of(dense, {}, "attention.dense (requested cudnn, in effect none)"),
            int(RankExit::kToggleMismatch));
  auto gpu = spec;
  gpu.parallel.device = spec::Device::kCuda;
  if (!fs::exists("/dev/nvidia0")) {
    EXPECT_EQ(exit_of(gpu, {}, "NVIDIA driver"), int(RankExit::kUsage));
  }
  EXPECT_EQ(exit_of(spec, {.resume = folder_.path() / "nothing"}, "nothing"),
            int(RankExit::kCheckpoint));
}

TEST_F(FaultTest, DamagedCheckpointIsNeverResumedFrom) {
  auto spec = tiny_run(dataset_);
  RunHarness run(folder_.path());
  {
    auto ranks = run.launch(spec);
    for (auto& rank : ranks)
      ASSERT_EQ(rank.wait_exit(), 0);
  }
  const fs::path checkpoint = run.checkpoints() / manifest::folder_name(12);
  const fs::path weights = checkpoint / "model.safetensors";
  std::string bytes = slurp(weights);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(weights, std::ios::binary) << bytes;
  auto ranks = run.launch(spec, {.attempt = 2, .resume = checkpoint});
  for (auto& rank : ranks)
    EXPECT_EQ(rank.wait_exit(), int(RankExit::kCheckpoint));
  EXPECT_THAT(run.log(2, 0), HasSubstr("model.safetensors has checksum"));
}

} // namespace
} // namespace nsa::test
