// The hang detector with two ranks, one rule at a time. hang_test.cpp has simulated runs.
#include "daemon/state/hang.h"

#include <algorithm>
#include <deque>
#include <gtest/gtest.h>
#include <random>
#include <utility>
#include <vector>

namespace nsa::state {

namespace {

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
  static spec::HangSection policy() {
    spec::HangSection p;
    p.ceiling_seconds = 60;
    return p;
  }
  // Trains both ranks for `steps` steps of one second.
  void train(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i) {
      for (RankSample& s : samples_) {
        ++s.host->step;
        s.host->step_start_ns = s.host->phase_start_ns = now_.nanoseconds;
        s.host->phase = progress::Phase::kForward;
        s.device.completed_step = s.host->step - 1;
        s.device.completed = s.device.started;
      }
      pass(1);
    }
  }
  std::optional<Verdict> pass(double seconds, double interval = 0.1) {
    std::optional<Verdict> verdict;
    for (double t = 0; t < seconds - 1e-9; t += interval) {
      now_ = now_ + from_seconds(interval);
      for (RankSample& s : samples_)
        if (s.process.state == 'R') s.process.cpu_seconds += interval;
      const Observation seen = detector_.observe(samples_, now_);
      slow_ += seen.slow.size();
      times_over_ += seen.is_over ? 1 : 0;
      if (seen.verdict) verdict = seen.verdict;
    }
    return verdict;
  }
  void wait_in_collective(Rank r) {
    RankSample& s = samples_[static_cast<size_t>(r)];
    s.host->phase = progress::Phase::kAllReduce;
    s.device.started = ++s.host->enqueued;
  }

  MonotonicTime now_{1'000'000'000};
  HangDetector detector_;
  std::vector<RankSample> samples_;
  size_t slow_ = 0;
  int times_over_ = 0; // number of withdrawn verdicts
};

TEST_F(Rules, AShortPauseBySignalIsNoHang) {
  train(30);
  for (RankSample& s : samples_)
    s.process.state = 'T';
  EXPECT_FALSE(pass(5));
  for (RankSample& s : samples_)
    s.process.state = 'R';
  train(5);
  EXPECT_FALSE(pass(5));
}

TEST_F(Rules, ARankThatASignalStoppedHasTheFloorInEveryPhase) {
  using progress::Phase;
  train(30);
  for (const Phase phase : {Phase::kStartUp, Phase::kEvaluation, Phase::kRestore,
                            Phase::kCheckpoint, Phase::kShutDown}) {
    SCOPED_TRACE(progress::phase_name(phase));
    for (RankSample& s : samples_) { // both ranks are in the phase; nothing is wrong with rank 0
      s.host->phase = phase;
      ++s.host->step;
    }
    EXPECT_FALSE(pass(25)); // longer than the floor, shorter than the phase's limit
    samples_[1].process.state = 'T';
    EXPECT_FALSE(pass(9.5)) << "a pause by a signal is no hang";
    samples_[1].process.state = 'S';
    EXPECT_FALSE(pass(5));
    samples_[1].process.state = 'T';
    EXPECT_FALSE(pass(9.5)) << "the pause before does not count";
    const auto verdict = pass(2);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->rank, 1);
    EXPECT_EQ(verdict->kind, HangKind::kStopped);
    samples_[1].process.state = 'S';
    ++samples_[1].host->step; // it continues
    pass(1);
    ASSERT_EQ(std::exchange(times_over_, 0), 1);
    ++samples_[0].host->step;
  }
}

TEST_F(Rules, ARankThatASignalStoppedBeforeItsFirstRecordHasTheFloorToo) {
  samples_[1].host.reset();
  EXPECT_FALSE(pass(25)); // it starts, and may take 300 s
  samples_[1].process.state = 'T';
  EXPECT_FALSE(pass(9.5));
  const auto verdict = pass(2);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->kind, HangKind::kStopped);
  EXPECT_EQ(verdict->phase, progress::Phase::kStartUp);
}

TEST_F(Rules, WithoutASecondWitnessOnlyTheCeilingCounts) {
  train(30);
  samples_[0].process.state = samples_[1].process.state = 'R'; // both compute, and nobody waits
  EXPECT_FALSE(pass(59));
  EXPECT_GT(slow_, 0u) << "that it is slow is said";
  EXPECT_TRUE(pass(5)) << "past the ceiling no witness is needed";
}

TEST_F(Rules, AWaitingPeerIsAWitness) {
  train(30);
  wait_in_collective(1);
  samples_[0].process.state = 'R';
  const auto verdict = pass(15);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 0);
  EXPECT_EQ(verdict->kind, HangKind::kSpinning);
}

TEST_F(Rules, ALateObserverBlamesNobody) {
  train(30);
  wait_in_collective(1);
  samples_[0].process.state = 'S';
  EXPECT_FALSE(pass(5));
  now_ = now_ + std::chrono::seconds(120); // nsad was stopped, and the ranks as well
  EXPECT_FALSE(pass(3));
}

TEST_F(Rules, TheFirstStepHasALimitOfItsOwn) {
  train(1); // the step has begun, but is not completed
  wait_in_collective(1);
  EXPECT_FALSE(pass(120)) << "below hang.first_step_seconds";
  EXPECT_TRUE(pass(200));
}

TEST_F(Rules, PeersOfACheckpointingRankWaitRightly) {
  train(30);
  samples_[0].host->phase = progress::Phase::kCheckpoint;
  samples_[0].process.state = 'D';
  ++samples_[1].host->step;
  wait_in_collective(1);
  EXPECT_FALSE(pass(100)) << "hang.checkpoint_seconds is 300";
}

// Rank 0 has more to do, for example it writes samples before the sums of an evaluation. It enters
// more phases than its peers, and has called fewer collectives.
TEST_F(Rules, PeersOfARankThatHasMoreToDoWaitRightly) {
  train(30);
  wait_in_collective(1);
  for (int piece = 0; piece < 120; ++piece) {
    samples_[0].host->micro_step = static_cast<uint64_t>(piece);
    samples_[0].host->phase_number += 2;
    EXPECT_FALSE(pass(1));
  }
}

TEST_F(Rules, ARankWithALaterCollectiveUnderANumberLeftOneOut) {
  using progress::CollectiveKind;
  using progress::Phase;
  train(30);
  for (RankSample& s : samples_) {
    for (uint64_t n = 1; n <= 40; ++n) // of the step before: 4 per step
      s.collectives.put({n,
                         {20 + n / 4, 4, Phase::kAllReduce},
                         CollectiveKind::kGradient,
                         static_cast<uint32_t>(n % 4)});
    s.host->enqueued = 39; // a rank's record counts what it has enqueued
  }
  EXPECT_FALSE(pass(2)) << "the same ones";
  samples_[0].collectives.put({40, {30, 4, Phase::kAllReduce}, CollectiveKind::kGradient, 1});
  samples_[0].host->enqueued = 40;
  EXPECT_FALSE(pass(0.4)) << "not yet confirmed";
  samples_[0].collectives = samples_[1].collectives; // by then the ring has newer collectives
  samples_[0].host->enqueued = 41;                   // so that the detector reads the ring again
  const auto verdict = pass(1);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 0);
  EXPECT_EQ(verdict->kind, HangKind::kSkippedCollective);
  EXPECT_EQ(verdict->step, 30u);
  EXPECT_EQ(verdict->phase, Phase::kAllReduce);
  EXPECT_EQ(verdict->witnesses,
            (std::vector<std::string>{"a peer's collective 40 is gradient bucket 0 of step 30",
                                      "its own is gradient bucket 1 of step 30: it left one out"}));
}

TEST_F(Rules, ATracedRankIsNoHangUntilItsDebuggerGoes) {
  train(30);
  wait_in_collective(1);
  samples_[0].process.state = 't';
  samples_[0].process.tracer = 77;
  const auto traced = pass(20);
  ASSERT_TRUE(traced);
  EXPECT_EQ(traced->rank, 0);
  EXPECT_EQ(traced->kind, HangKind::kTraced);
  EXPECT_EQ(traced->tracer, 77);
  EXPECT_FALSE(pass(100)) << "as long as it likes, also past the ceiling";
  EXPECT_EQ(times_over_, 0);
  samples_[0].process.state = 'S';
  samples_[0].process.tracer = 0;
  EXPECT_FALSE(pass(1));
  EXPECT_EQ(times_over_, 1);
  EXPECT_FALSE(pass(8)) << "the debugger's time is not the rank's";
  const auto hang = pass(6);
  ASSERT_TRUE(hang) << "it was stuck before, and still is";
  EXPECT_EQ(hang->rank, 0);
  EXPECT_EQ(hang->kind, HangKind::kDeadlocked);
}

TEST_F(Rules, ADebuggerThatStopsARankInsideACollectiveIsSeen) {
  train(30);
  wait_in_collective(0);
  wait_in_collective(1);
  samples_[1].process.state = 't';
  const auto verdict = pass(20);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->kind, HangKind::kTraced);
}

TEST_F(Rules, AVerdictComesOnceAndIsWithdrawnByMovement) {
  train(30);
  wait_in_collective(1);
  ASSERT_TRUE(pass(15));
  EXPECT_FALSE(pass(15)) << "told once";
  samples_[1].host->phase = progress::Phase::kShutDown; // the victim gives up
  EXPECT_FALSE(pass(1));
  EXPECT_EQ(times_over_, 0);
  ++samples_[0].host->micro_step;
  EXPECT_FALSE(pass(1));
  EXPECT_EQ(times_over_, 1);
  samples_[1].host->phase = progress::Phase::kAllReduce;
  EXPECT_TRUE(pass(20)) << "the next hang is seen again";
}

TEST_F(Rules, ARankThatStarvesGetsItsTimeBack) {
  train(30);
  wait_in_collective(1);
  samples_[0].process.state = 'R';
  bool found = false;
  for (int i = 0; i < 300 && !found; ++i) { // ready to run for 80 % of the time, without a CPU
    samples_[0].process.run_delay_seconds += 0.08;
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

// The labels of the phases do not show which rank it is.
TEST_F(Rules, OfRanksThatAllWaitTheOneInTheEarlierCollectiveIsTheCulprit) {
  using progress::Phase;
  for (const auto& [ahead, behind] : {std::pair(Phase::kRestore, Phase::kAllGatherState),
                                      std::pair(Phase::kAllGatherState, Phase::kRestore),
                                      std::pair(Phase::kData, Phase::kData)}) {
    SCOPED_TRACE(progress::phase_name(ahead));
    train(30);
    for (const Rank r : {0, 1}) {
      wait_in_collective(r);
      samples_[static_cast<size_t>(r)].host->phase = r == 0 ? ahead : behind;
      samples_[static_cast<size_t>(r)].process.state = 'S';
    }
    samples_[0].device.completed = samples_[0].device.started;
    wait_in_collective(0);
    samples_[0].host->phase = ahead;
    EXPECT_FALSE(pass(5));
    const auto verdict = pass(400);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->rank, 1);
    EXPECT_EQ(verdict->kind, HangKind::kStuckCollective);
    for (RankSample& s : samples_) { // they continue
      s.device.started = s.device.completed = s.host->enqueued = 100 * s.host->step;
      s.process.state = 'R';
      ++s.host->step;
    }
    pass(1);
    EXPECT_EQ(std::exchange(times_over_, 0), 1);
  }
}

// Each row of the table of phases: a rank that hangs in the phase is found within the limit. Its
// waiting peer is not blamed.
TEST_F(Rules, ARankIsFoundInEveryPhaseWithinItsLimit) {
  for (const progress::PhaseInfo& info : progress::kPhases) {
    SCOPED_TRACE(info.name);
    train(30);
    samples_[0].host->phase = info.phase;
    samples_[0].process.state = samples_[1].process.state = 'S';
    wait_in_collective(1);
    const double limit = detector_.limits().limit(info.phase, true);
    EXPECT_FALSE(pass(limit - 2));
    const auto verdict = pass(4);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->rank, 0);
    EXPECT_EQ(verdict->phase, info.phase);
    EXPECT_EQ(verdict->kind,
              info.phase == progress::Phase::kData ? HangKind::kDataStall : HangKind::kDeadlocked);
    ++samples_[0].host->micro_step; // it continues
    samples_[0].host->enqueued = samples_[0].device.started = samples_[1].device.started;
    for (RankSample& s : samples_)
      s.device.completed = s.device.started;
    pass(1);
    EXPECT_EQ(std::exchange(times_over_, 0), 1);
  }
}

TEST(PhaseLimits, LearnedLimitsStayBetweenFloorAndCeiling) {
  spec::HangSection policy;
  PhaseLimits limits(policy);
  EXPECT_EQ(limits.limit(progress::Phase::kForward, false), policy.first_step_seconds);
  EXPECT_EQ(limits.limit(progress::Phase::kForward, true), policy.ceiling_seconds);
  for (int i = 0; i < 100; ++i)
    limits.add_step(4);
  EXPECT_EQ(limits.limit(progress::Phase::kBackward, true), 20);
  EXPECT_EQ(limits.limit(progress::Phase::kAllGatherState, true), 60)
      << "as much as three steps move";
  EXPECT_EQ(limits.limit(progress::Phase::kRestore, true), policy.checkpoint_seconds);
  for (int i = 0; i < 600; ++i)
    limits.add_step(1000);
  EXPECT_EQ(limits.limit(progress::Phase::kBackward, true), policy.ceiling_seconds);
  EXPECT_EQ(limits.limit(progress::Phase::kStartUp, true), policy.start_up_seconds);
}

TEST(DurationHistory, KeepsThePercentileOfTheNewestDurations) {
  std::mt19937_64 random(5);
  std::deque<double> newest;
  DurationHistory history({});
  for (int i = 0; i < 5000; ++i) {
    const double long_one = random() % 50 == 0 ? 3 : 0;
    // Many values are equal.
    const double seconds = long_one + static_cast<double>(random() % 100) / 100;
    history.add(seconds);
    newest.push_back(seconds);
    if (newest.size() > 512) newest.pop_front();
    std::vector<double> sorted(newest.begin(), newest.end());
    std::ranges::sort(sorted);
    ASSERT_EQ(history.usual().p99, sorted[sorted.size() - 1 - sorted.size() / 100]) << i;
    ASSERT_EQ(history.usual().count, sorted.size());
  }
}

TEST(RefineKind, StacksTellSpinningFromWaiting) {
  EXPECT_EQ(refine_kind(HangKind::kDeadlocked, 'R', 0.9), HangKind::kSpinning);
  EXPECT_EQ(refine_kind(HangKind::kSpinning, 'S', 0.0), HangKind::kDeadlocked);
  EXPECT_EQ(refine_kind(HangKind::kDeadlocked, 'T', 0.0), HangKind::kStopped);
  EXPECT_EQ(refine_kind(HangKind::kSkippedCollective, 'S', 0.0), HangKind::kSkippedCollective)
      << "what peers saw stays";
}

} // namespace

} // namespace nsa::state
