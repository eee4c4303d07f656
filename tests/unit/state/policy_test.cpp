#include "daemon/state/policy.h"

#include <csignal>
#include <gtest/gtest.h>
#include <set>

namespace nsa::state {

namespace {

using wire::FailureClass;

Attempt attempt_of(std::vector<RankState> ranks) {
  Attempt a;
  a.ranks = std::move(ranks);
  return a;
}

RankState ended(int exit_code, int signal, int64_t order, bool killed = false) {
  RankState r;
  r.started = r.exited = true;
  r.exit_code = exit_code;
  r.signal = signal;
  r.exit_order = order;
  r.killed_by_shim = killed;
  return r;
}

TEST(Classify, TheFirstDeathThatIsNoVictimIsTheCause) {
  const Failure f = classify(attempt_of(
      {ended(8, 0, 10), ended(-1, SIGKILL, 40, true), ended(-1, SIGSEGV, 30), ended(1, 0, 35)}));
  EXPECT_EQ(f.culprit, 2);
  EXPECT_EQ(f.failure, FailureClass::kCrash);
  EXPECT_NE(f.text.find("SIGSEGV"), std::string::npos);
}

TEST(Classify, ARankThatFinishedIsNeverTheCause) {
  RankState done = ended(0, 0, 1);
  done.finished = true;
  done.finish_reason = wire::FinishReason::kCompleted;
  EXPECT_EQ(classify(attempt_of({done, ended(3, 0, 9)})).failure, FailureClass::kData);
}

TEST(Classify, WhatIsKnownBeforeWins) {
  Attempt a = attempt_of({ended(1, 0, 1)});
  a.failure = FailureClass::kSupervisor;
  a.failure_text = "shim";
  EXPECT_EQ(classify(a).failure, FailureClass::kSupervisor);
}

TEST(DecideRestart, TheDelayDoublesUpToItsMaximumWithJitter) {
  state::Run run;
  run.policy.max_restarts = run.policy.max_total_restarts = 100;
  run.policy.max_without_progress = 100;
  run.policy.delay_seconds = 2;
  run.policy.max_delay_seconds = 60;
  const WallTime now{1'000'000'000};
  std::set<int64_t> seen;
  for (int n = 0; n < 10; ++n) {
    const Decision d = decide_restart(run, FailureClass::kCrash, now);
    ASSERT_TRUE(d.restart);
    const double base = std::min(60.0, 2.0 * (1 << n));
    EXPECT_GE(to_seconds(d.delay), base * 0.75);
    EXPECT_LE(to_seconds(d.delay), base * 1.25);
    seen.insert(d.delay.count());
    run.restarts.push_back({FailureClass::kCrash, now});
  }
  EXPECT_EQ(seen.size(), 10u) << "jitter differs from time to time";
}

TEST(DecideRestart, TheSameSeedGivesTheSameDelay) {
  state::Run a, b, c;
  a.policy.jitter_seed = b.policy.jitter_seed = 42;
  c.policy.jitter_seed = 43;
  const WallTime now{5};
  EXPECT_EQ(decide_restart(a, FailureClass::kHang, now).delay,
            decide_restart(b, FailureClass::kHang, now).delay);
  EXPECT_NE(decide_restart(a, FailureClass::kHang, now).delay,
            decide_restart(c, FailureClass::kHang, now).delay);
}

TEST(DecideRestart, MistakesAreNotRetried) {
  const state::Run run;
  EXPECT_FALSE(decide_restart(run, FailureClass::kUserError, {}).restart);
  EXPECT_FALSE(decide_restart(run, FailureClass::kNonFinite, {}).restart);
  EXPECT_TRUE(decide_restart(run, FailureClass::kStopped, {}).restart);
}

TEST(ExitText, NamesSignals) {
  EXPECT_EQ(exit_text(3, 0), "exit 3");
  EXPECT_EQ(exit_text(-1, SIGKILL), "signal 9 (SIGKILL)");
}

} // namespace

} // namespace nsa::state
