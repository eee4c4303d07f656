#include "tests/unit/state/simulated_run.h"

#include <gtest/gtest.h>

namespace nsa::state {

namespace {

// Watches until a verdict comes or `steps` are done; ten observations a second.
struct Watched {
  std::optional<Verdict> verdict;
  double seconds = 0;
  uint64_t steps = 0;
  size_t slow = 0;
};

Watched watch(const SimulationOptions& options, const HangPolicy& policy, uint64_t steps,
              double limit_seconds = 1e9) {
  SimulatedRun run(options);
  HangDetector detector(policy, options.ranks, run.now());
  Watched w;
  while (w.steps < steps && w.seconds < limit_seconds) {
    const Observation seen = detector.observe(run.advance(0.1), run.now());
    w.seconds += 0.1;
    w.slow += seen.slow.size();
    w.steps = run.completed_steps();
    if (seen.verdict) {
      w.verdict = seen.verdict;
      return w;
    }
  }
  return w;
}

// 10^5 steps in all: evaluations, checkpoints, slow steps, slow disks, starved CPUs, 1 to 8 ranks,
// steps from a tenth of a second to half a minute.
TEST(Hang, NoFalseVerdictIn100000Steps) {
  const double step_seconds[] = {0.1, 0.5, 2, 10, 30};
  uint64_t total = 0;
  for (uint64_t seed = 1; total < 100'000; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    options.ranks = 1 + static_cast<int>(seed % 4) * (seed % 3 == 0 ? 2 : 1);
    options.step_seconds = step_seconds[seed % 5];
    options.evaluation_seconds = options.step_seconds * 20;
    options.checkpoint_seconds = options.step_seconds * 5;
    options.starved_share = seed % 4 == 0 ? 0.6 : 0;
    options.disk_stall_chance = seed % 3 == 0 ? 0.001 : 0;
    options.disk_stall_seconds = 15;
    HangPolicy policy;
    policy.evaluation = policy.checkpoint = 3000; // as long ones need it
    policy.start_up = 600;
    const uint64_t steps = options.step_seconds > 5   ? 300
                           : options.step_seconds > 1 ? 1'500
                                                      : 8'000;
    const Watched w = watch(options, policy, steps);
    ASSERT_FALSE(w.verdict) << "seed " << seed << ", step " << w.steps << ": rank "
                            << w.verdict->rank << " " << w.verdict->kind << ", "
                            << w.verdict->witnesses[0];
    total += w.steps;
  }
}

class Injected : public testing::TestWithParam<std::string> {};

TEST_P(Injected, TheRightRankAndKindAreNamed) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    options.ranks = 2 + static_cast<int>(seed % 7);
    options.step_seconds = seed % 2 == 0 ? 0.2 : 1.5;
    options.fault = GetParam();
    options.fault_rank = static_cast<int>(seed) % options.ranks;
    options.fault_step = 20 + seed;
    const HangPolicy policy;
    const Watched w = watch(options, policy, 100'000, 600);
    ASSERT_TRUE(w.verdict) << "seed " << seed;
    EXPECT_EQ(w.verdict->rank, options.fault_rank) << "seed " << seed;
    EXPECT_EQ(w.verdict->kind, GetParam()) << "seed " << seed;
    EXPECT_EQ(w.verdict->step, options.fault_step) << "seed " << seed;
    EXPECT_GE(w.verdict->witnesses.size(), 2u);
    // Floor 10 s; five times the slowest hundredth of the steps; one second to be sure.
    const double slowest = options.step_seconds * (1 + 0.3 * options.slow_factor) * 1.1;
    EXPECT_LE(w.verdict->stalled_seconds, std::max(10.0, 10 * slowest) + 1) << "seed " << seed;
    EXPECT_EQ(w.steps, options.fault_step - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Injected,
                         testing::Values(kStoppedKind, kDeadlockedKind, kSpinningKind, kSkippedKind,
                                         kDataStallKind),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

// ---- one rule at a time
// ---------------------------------------------------------------------------

class Rules : public testing::Test {
protected:
  Rules() : detector_(policy(), 2, now_) {
    for (Rank r = 0; r < 2; ++r) {
      RankSample s;
      s.rank = r;
      s.host = progress::HostRecord{};
      samples_.push_back(s);
    }
  }
  static HangPolicy policy() {
    HangPolicy p;
    p.ceiling = 60;
    return p;
  }
  // Both ranks through `steps` steps of a second.
  void train(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i) {
      for (RankSample& s : samples_) {
        ++s.host->step;
        s.host->step_start_ns = s.host->phase_start_ns = now_.nanoseconds;
        s.host->phase = progress::Phase::kForward;
        s.device.completed_step = s.host->step - 1;
      }
      pass(1);
    }
  }
  std::optional<Verdict> pass(double seconds, double interval = 0.1) {
    std::optional<Verdict> verdict;
    for (double t = 0; t < seconds - 1e-9; t += interval) {
      now_ = now_ + from_seconds(interval);
      for (RankSample& s : samples_)
        if (s.process_state == 'R') s.cpu_seconds += interval;
      const Observation seen = detector_.observe(samples_, now_);
      slow_ += seen.slow.size();
      if (seen.verdict) verdict = seen.verdict;
    }
    return verdict;
  }
  void wait_in_collective(Rank r) {
    progress::HostRecord& host = *samples_[static_cast<size_t>(r)].host;
    host.phase = progress::Phase::kAllReduce;
    ++host.collective_sequence;
  }

  MonotonicTime now_{1'000'000'000};
  HangDetector detector_;
  std::vector<RankSample> samples_;
  size_t slow_ = 0;
};

TEST_F(Rules, AShortPauseBySignalIsNoHang) {
  train(30);
  for (RankSample& s : samples_)
    s.process_state = 'T';
  EXPECT_FALSE(pass(5));
  for (RankSample& s : samples_)
    s.process_state = 'R';
  train(5);
  EXPECT_FALSE(pass(5));
}

TEST_F(Rules, WithoutASecondWitnessOnlyTheCeilingCounts) {
  train(30);
  samples_[0].process_state = samples_[1].process_state = 'R'; // both compute; nobody waits
  EXPECT_FALSE(pass(59));
  EXPECT_GT(slow_, 0u) << "that it is slow is said";
  EXPECT_TRUE(pass(5)) << "past the ceiling no witness is needed";
}

TEST_F(Rules, AWaitingPeerIsAWitness) {
  train(30);
  wait_in_collective(1);
  samples_[0].process_state = 'R';
  const auto verdict = pass(15);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 0);
  EXPECT_EQ(verdict->kind, kSpinningKind);
}

TEST_F(Rules, ALateObserverBlamesNobody) {
  train(30);
  wait_in_collective(1);
  samples_[0].process_state = 'S';
  EXPECT_FALSE(pass(5));
  now_ = now_ + std::chrono::seconds(120); // the daemon was stopped, the ranks as well
  EXPECT_FALSE(pass(3));
}

TEST_F(Rules, TheFirstStepHasALimitOfItsOwn) {
  train(1); // begun, not completed
  wait_in_collective(1);
  EXPECT_FALSE(pass(120)) << "below hang.first_step_seconds";
  EXPECT_TRUE(pass(200));
}

TEST_F(Rules, PeersOfACheckpointingRankWaitRightly) {
  train(30);
  samples_[0].host->phase = progress::Phase::kCheckpoint;
  samples_[0].process_state = 'D';
  ++samples_[1].host->step;
  wait_in_collective(1);
  EXPECT_FALSE(pass(100)) << "hang.checkpoint_seconds is 300";
}

TEST_F(Rules, ATracedRankIsNoHangUntilItsDebuggerGoes) {
  train(30);
  wait_in_collective(1);
  samples_[0].process_state = 't';
  samples_[0].tracer = 77;
  const auto traced = pass(20);
  ASSERT_TRUE(traced);
  EXPECT_EQ(traced->rank, 0);
  EXPECT_EQ(traced->kind, kTracedKind);
  EXPECT_EQ(traced->tracer, 77);
  EXPECT_FALSE(pass(100)) << "as long as it likes, also past the ceiling";
  EXPECT_FALSE(detector_.verdict_is_over());
  samples_[0].process_state = 'S';
  samples_[0].tracer = 0;
  EXPECT_FALSE(pass(1));
  EXPECT_TRUE(detector_.verdict_is_over());
  detector_.resume_watching();
  EXPECT_FALSE(pass(8)) << "the debugger's time is not the rank's";
  const auto hang = pass(6);
  ASSERT_TRUE(hang) << "it was stuck before, and still is";
  EXPECT_EQ(hang->rank, 0);
  EXPECT_EQ(hang->kind, kDeadlockedKind);
}

TEST_F(Rules, ADebuggerThatStopsARankInsideACollectiveIsSeen) {
  train(30);
  wait_in_collective(0);
  wait_in_collective(1);
  samples_[1].process_state = 't';
  const auto verdict = pass(20);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->kind, kTracedKind);
}

TEST_F(Rules, AVerdictComesOnceAndIsWithdrawnByMovement) {
  train(30);
  wait_in_collective(1);
  ASSERT_TRUE(pass(15));
  EXPECT_FALSE(pass(15)) << "told once";
  samples_[1].host->phase = progress::Phase::kShutDown; // the victim gives up
  EXPECT_FALSE(pass(1));
  EXPECT_FALSE(detector_.verdict_is_over());
  ++samples_[0].host->micro_step;
  EXPECT_FALSE(pass(1));
  EXPECT_TRUE(detector_.verdict_is_over());
  detector_.resume_watching();
  samples_[1].host->phase = progress::Phase::kAllReduce;
  EXPECT_TRUE(pass(20)) << "the next hang is seen again";
}

TEST_F(Rules, ARankThatStarvesGetsItsTimeBack) {
  train(30);
  wait_in_collective(1);
  samples_[0].process_state = 'R';
  bool found = false;
  for (int i = 0; i < 300 && !found; ++i) { // ready to run for 80 % of the time, without a CPU
    samples_[0].run_delay_seconds += 0.08;
    found = pass(0.1).has_value();
  }
  EXPECT_FALSE(found) << "30 s with a fifth of a CPU are 6 s of its own";
}

TEST_F(Rules, ALongLearnedStepRaisesTheLimit) {
  for (int i = 0; i < 30; ++i) { // steps of 8 s
    train(1);
    EXPECT_FALSE(pass(7));
  }
  wait_in_collective(1);
  EXPECT_FALSE(pass(30)) << "5 x 8 s, 8 of which have passed";
  EXPECT_TRUE(pass(10));
}

TEST(PhaseLimits, LearnedLimitsStayBetweenFloorAndCeiling) {
  HangPolicy policy;
  PhaseLimits limits(policy);
  EXPECT_EQ(limits.limit(progress::Phase::kForward, false), policy.first_step);
  EXPECT_EQ(limits.limit(progress::Phase::kForward, true), policy.ceiling);
  for (int i = 0; i < 100; ++i)
    limits.add_step(4);
  EXPECT_EQ(limits.limit(progress::Phase::kBackward, true), 20);
  for (int i = 0; i < 600; ++i)
    limits.add_step(1000);
  EXPECT_EQ(limits.limit(progress::Phase::kBackward, true), policy.ceiling);
  EXPECT_EQ(limits.limit(progress::Phase::kStartUp, true), policy.start_up);
}

TEST(RefineKind, StacksTellSpinningFromWaiting) {
  EXPECT_EQ(refine_kind(kDeadlockedKind, 'R', 0.9), kSpinningKind);
  EXPECT_EQ(refine_kind(kSpinningKind, 'S', 0.0), kDeadlockedKind);
  EXPECT_EQ(refine_kind(kDeadlockedKind, 'T', 0.0), kStoppedKind);
  EXPECT_EQ(refine_kind(kSkippedKind, 'S', 0.0), kSkippedKind) << "what peers saw stays";
}

} // namespace

} // namespace nsa::state
