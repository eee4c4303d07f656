// Injected faults: which rank and step are drawn, what is written to the file, and where they
// happen.
#include "common/base/file.h"
#include "tests/support/temporary_folder.h"
#include "worker/faults/fault_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <set>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

TEST(Injection, SameDrawEverywhereAndInRange) {
  spec::InjectSection inject;
  inject.kind = spec::FaultKind::kRandom;
  std::set<std::string_view> kinds;
  std::set<Rank> ranks;
  for (inject.seed = 0; inject.seed < 200; ++inject.seed) {
    const auto a = **plan_injection(inject, 400, 3, 1);
    const auto b = **plan_injection(inject, 400, 3, 1);
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.rank, b.rank);
    EXPECT_EQ(a.fault, b.fault);
    EXPECT_GE(a.step, 101u);
    EXPECT_LE(a.step, 200u);
    kinds.insert(spec::name_of(a.fault));
    ranks.insert(a.rank);
  }
  EXPECT_THAT(kinds, ::testing::UnorderedElementsAre("stop_signal", "mutex_deadlock", "spin",
                                                     "skip_collective", "data_stall"));
  EXPECT_EQ(ranks.size(), 3u);
}

TEST(Injection, OnlyInItsAttemptAndOnlyWhatCanHappen) {
  spec::InjectSection inject;
  EXPECT_FALSE(*plan_injection(inject, 100, 2, 1)) << "none";
  inject.kind = spec::FaultKind::kSpin;
  inject.rank = 1;
  inject.step = 7;
  EXPECT_EQ((*plan_injection(inject, 100, 2, 1))->step, 7u);
  EXPECT_FALSE(*plan_injection(inject, 100, 2, 2)) << "the restarted attempt runs clean";
  inject.rank = 2;
  EXPECT_FALSE(plan_injection(inject, 100, 2, 1));
  inject.rank = 0;
  for (const auto kind :
       {spec::FaultKind::kSkipCollective, spec::FaultKind::kKillInAllGather,
        spec::FaultKind::kStopInAllGather, spec::FaultKind::kDeadlockInAllGather}) {
    inject.kind = kind;
    EXPECT_FALSE(plan_injection(inject, 100, 1, 1)) << spec::name_of(kind);
    EXPECT_EQ((*plan_injection(inject, 100, 2, 1))->fault, kind);
  }
  inject.kind = spec::FaultKind::kRandom;
  inject.step = -1;
  for (inject.seed = 0; inject.seed < 50; ++inject.seed) {
    EXPECT_NE((*plan_injection(inject, 100, 1, 1))->fault, spec::FaultKind::kSkipCollective);
    EXPECT_GE((*plan_injection(inject, 2, 1, 1))->step, 1u);
  }
}

TEST(Injection, IsWrittenDown) {
  std::string folder = (fs::temp_directory_path() / "nsa-inject-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_TRUE(record_injection(folder, {spec::FaultKind::kSpin, 1, 42}));
  EXPECT_EQ(*read_file(fs::path(folder) / "injected.json"),
            "{\"rank\":1,\"step\":42,\"kind\":\"spin\"}\n");
  fs::remove_all(folder);
}

class FaultHookTest : public ::testing::Test {
protected:
  FaultHookTest() {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    shim_.reset(pair[0]);
    link_.emplace(UniqueFd(pair[1]));
  }
  FaultHook hook(spec::FaultKind kind) {
    return FaultHook({kind, 1, 7}, folder_.path(), *link_, [this] { ++stalls_; });
  }
  // Returns the file, which has one line for each fault that has happened.
  std::string injected() const {
    const auto text = read_file(folder_.path() / "injected.json");
    return text ? *text : "";
  }

  const test::TemporaryFolder folder_;
  int stalls_ = 0; // of the device
  UniqueFd shim_;
  std::optional<link::Link> link_;
};

TEST_F(FaultHookTest, StrikesAtItsStepAndPointOnceAndSaysSo) {
  FaultHook nan = hook(spec::FaultKind::kNonFinite);
  EXPECT_FALSE(nan.poisons(6));
  EXPECT_FALSE(nan.skips_collectives(7));
  nan.enter(progress::Phase::kForward, 7, 0); // the fault has another place, so enter() returns
  EXPECT_EQ(injected(), "");
  EXPECT_TRUE(nan.poisons(7));
  EXPECT_EQ(injected(), "{\"rank\":1,\"step\":7,\"kind\":\"non_finite\"}\n");
  EXPECT_FALSE(nan.poisons(7)) << "once";
  EXPECT_FALSE(nan.poisons(8));

  FaultHook skip = hook(spec::FaultKind::kSkipCollective);
  EXPECT_FALSE(skip.poisons(7));
  EXPECT_TRUE(skip.skips_collectives(7));
  EXPECT_FALSE(skip.skips_collectives(7));
}

TEST_F(FaultHookTest, AKernelThatNeverEndsIsStartedBetweenTheCollectivesOfAStep) {
  FaultHook endless = hook(spec::FaultKind::kEndlessKernelInUpdate);
  endless.enter(progress::Phase::kForward, 7, 0);
  endless.enter(progress::Phase::kOptimizer, 6, 0);
  EXPECT_EQ(stalls_, 0);
  endless.enter(progress::Phase::kOptimizer, 7, 0);
  EXPECT_EQ(stalls_, 1);
  hook(spec::FaultKind::kEndlessKernel).enter(progress::Phase::kForward, 7, 0);
  EXPECT_EQ(stalls_, 2);
}

TEST_F(FaultHookTest, ADataStallHoldsTheLoaderUntilItIsTornDown) {
  FaultHook stall = hook(spec::FaultKind::kDataStall);
  int asked = 0;
  const auto stopping = [&] { return ++asked == 3; };
  stall.stall_loader(6, stopping);
  EXPECT_EQ(asked, 0);
  stall.stall_loader(7, stopping);
  EXPECT_EQ(asked, 3);
}

// Not every step has a checkpoint. The fault takes the first checkpoint at its step or later.
TEST(FaultHook, OfACheckpointsAllGatherWaitsForOne) {
  const test::TemporaryFolder folder;
  const pid_t rank = ::fork(); // before the process has threads
  ASSERT_NE(rank, -1);
  if (rank == 0) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) ::_exit(1);
    link::Link link{UniqueFd(pair[1])};
    FaultHook kill({spec::FaultKind::kKillInAllGather, 1, 7}, folder.path(), link, [] {});
    kill.enter(progress::Phase::kForward, 7, 0);
    kill.enter(progress::Phase::kAllGatherState, 5, 0);
    kill.enter(progress::Phase::kAllGatherState, 10, 0);
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  const auto written = read_file(folder.path() / "injected.json");
  ASSERT_TRUE(written);
  EXPECT_EQ(*written, "{\"rank\":1,\"step\":10,\"kind\":\"kill_in_all_gather\"}\n");
}

} // namespace
} // namespace nsa::train
