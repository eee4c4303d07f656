// The hang detector with simulated ranks. It finds every kind of stall in time and names the right
// rank. It gives no verdict if nothing hangs.
#include "tests/unit/state/simulated_ranks.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace nsa::state {
namespace {

using progress::Phase;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr spec::HangSection kPolicy{.floor_seconds = 2,
                                    .ceiling_seconds = 60,
                                    .factor = 5,
                                    .start_up_seconds = 60,
                                    .first_step_seconds = 60,
                                    .checkpoint_seconds = 20,
                                    .evaluation_seconds = 20};
constexpr double kPoll = 0.1;

// Polls until there is a verdict or the time is over. `slow` receives the alerts. `times_over`
// counts withdrawn verdicts.
template <class Ranks>
std::optional<Verdict> watch(Ranks& ranks, HangDetector& detector, double seconds,
                             std::vector<SlowStep>* slow = nullptr, int* times_over = nullptr) {
  for (double passed = 0; passed < seconds; passed += kPoll) {
    ranks.advance(kPoll);
    Observation seen = detector.observe(ranks.samples(), ranks.now());
    if (slow) slow->insert(slow->end(), seen.slow.begin(), seen.slow.end());
    if (times_over && seen.is_over) ++*times_over;
    if (seen.verdict) return seen.verdict;
  }
  return std::nullopt;
}

struct Kind {
  Fault fault;
  HangKind kind;
};

// A fault with a random rank, time and phase.
struct Injected {
  Rank culprit = 0;
  uint64_t step = 0;
  Phase phase = Phase::kForward;
};
Injected inject_anew(SimulatedRanks& ranks, Fault fault, int count, std::mt19937& random) {
  constexpr Phase kPhases[] = {Phase::kForward, Phase::kBackward, Phase::kOptimizer};
  Injected drawn;
  drawn.culprit = static_cast<Rank>(random() % static_cast<unsigned>(count));
  drawn.step = 25 + random() % 40;
  drawn.phase = fault == Fault::kDataStall ? Phase::kData : kPhases[random() % 3];
  ranks.inject(fault, drawn.culprit, drawn.step, drawn.phase);
  return drawn;
}

class EveryKind : public ::testing::TestWithParam<Kind> {};

// 59 random faults of a class. The number of ranks, the rank, the time and the phase vary. In every
// second round ranks update shards.
TEST_P(EveryKind, IsFoundInTimeOnTheRightRank) {
  std::mt19937 random(101);
  for (int round = 0; round < 59; ++round) {
    const int count = 2 + static_cast<int>(random() % 7);
    SimulatedRanks ranks(count, random());
    ranks.shards = round % 2 == 1;
    ranks.collectives_a_phase = 1 + static_cast<uint32_t>(round) % 3;
    ranks.early_collectives = static_cast<uint32_t>(round) % 4;
    HangDetector detector(kPolicy, count, ranks.now());
    const auto [culprit, step, phase] = inject_anew(ranks, GetParam().fault, count, random);
    while (!ranks.stuck())
      ASSERT_FALSE(watch(ranks, detector, kPoll)) << "a verdict before the fault";
    const MonotonicTime since = ranks.now();
    const auto verdict = watch(ranks, detector, 30);
    ASSERT_TRUE(verdict) << "round " << round << ": not found";
    EXPECT_EQ(verdict->rank, culprit) << "round " << round << " of " << count << " ranks";
    EXPECT_EQ(verdict->kind, GetParam().kind);
    EXPECT_EQ(verdict->step, step);
    EXPECT_EQ(verdict->phase, GetParam().fault == Fault::kSkipped ? Phase::kAllReduce : phase);
    EXPECT_GE(verdict->witnesses.size(), 2u);
    EXPECT_EQ(verdict->tracer, 0);
    // The verdict comes within the limit and one second of confirmation, and never before the
    // floor. Counters show a skipped collective as soon as the next step begins.
    const double limit = detector.limits().limit(phase, true);
    const double taken = to_seconds(ranks.now() - since);
    if (GetParam().fault == Fault::kSkipped) {
      EXPECT_LE(taken, 2);
    } else {
      EXPECT_LE(taken, limit + 1) << "limit " << limit;
      EXPECT_GE(taken, kPolicy.floor_seconds);
    }
  }
}

// Ranks that share sequences wait for their neighbours within passes. Other groups continue until
// the end of the step.
TEST_P(EveryKind, IsFoundAmongRanksThatShareSequences) {
  std::mt19937 random(102);
  for (int round = 0; round < 59; ++round) {
    SCOPED_TRACE(round);
    const int count = 2 * (1 + static_cast<int>(random() % 4));
    SimulatedRanks ranks(count, random());
    ranks.shards = round % 2 == 1;
    ranks.context_ranks = 2;
    ranks.exchanges_a_phase = 1 + round % 5;
    HangDetector detector(kPolicy, count, ranks.now());
    const auto [culprit, step, phase] = inject_anew(ranks, GetParam().fault, count, random);
    while (!ranks.stuck())
      ASSERT_FALSE(watch(ranks, detector, kPoll)) << "a verdict before the fault";
    const auto verdict = watch(ranks, detector, detector.limits().limit(phase, true) + 2);
    ASSERT_TRUE(verdict) << "not found";
    EXPECT_EQ(verdict->rank, culprit) << "of " << count << " ranks";
    EXPECT_EQ(verdict->kind, GetParam().kind);
  }
}

TEST(Hang, SlowStepsOfRanksThatShareSequencesAreNoHang) {
  SimulatedRanks ranks(4, 9);
  ranks.context_ranks = 2;
  ranks.exchanges_a_phase = 3;
  ranks.slowness = 2;
  ranks.slow_chance = 0.01;
  HangDetector detector(kPolicy, 4, ranks.now());
  while (ranks.least_step() < 5000)
    ASSERT_FALSE(watch(ranks, detector, 10)) << "in step " << ranks.least_step();
}

INSTANTIATE_TEST_SUITE_P(Hang, EveryKind,
                         ::testing::Values(Kind{Fault::kStopped, HangKind::kStopped},
                                           Kind{Fault::kDeadlocked, HangKind::kDeadlocked},
                                           Kind{Fault::kSpinning, HangKind::kSpinning},
                                           Kind{Fault::kSkipped, HangKind::kSkippedCollective},
                                           Kind{Fault::kDataStall, HangKind::kDataStall}),
                         [](const auto& info) {
                           std::string name = text_of(info.param.kind);
                           std::erase(name, '-');
                           return name;
                         });

// A rank hangs after its step's collectives and before the next ones. Its peers wait for it, but it
// skipped no collective.
TEST(Hang, ARankStuckBetweenStepsIsNoSkipper) {
  struct Place {
    Phase phase;
    uint64_t evaluate_every, checkpoint_every;
  };
  for (const bool shards : {false, true})
    for (const Place& place : {Place{Phase::kResults, 0, 0}, Place{Phase::kResults, 30, 30},
                               Place{Phase::kEvaluation, 30, 30}, Place{Phase::kCheckpoint, 0, 30}})
      for (const auto& [fault, kind] : {std::pair(Fault::kDeadlocked, HangKind::kDeadlocked),
                                        std::pair(Fault::kSpinning, HangKind::kSpinning)}) {
        SCOPED_TRACE(testing::Message() << "shards " << shards << ", " << phase_name(place.phase)
                                        << ", " << name_of(kind));
        SimulatedRanks ranks(3, 6);
        ranks.shards = shards;
        ranks.evaluate_every = place.evaluate_every;
        ranks.checkpoint_every = place.checkpoint_every;
        HangDetector detector(kPolicy, 3, ranks.now());
        ranks.inject(fault, 1, 30, place.phase);
        while (!ranks.stuck())
          ASSERT_FALSE(watch(ranks, detector, kPoll));
        const MonotonicTime since = ranks.now();
        const auto verdict = watch(ranks, detector, detector.limits().limit(place.phase, true) + 5);
        ASSERT_TRUE(verdict);
        EXPECT_EQ(verdict->rank, 1);
        EXPECT_EQ(verdict->kind, kind);
        EXPECT_EQ(verdict->phase, place.phase);
        EXPECT_GE(to_seconds(ranks.now() - since), detector.limits().limit(place.phase, true));
      }
}

// The skipper may continue with the next step, the sums of its evaluation, or a checkpoint's state.
TEST(Hang, ASkipperIsFoundInCollectivesBetweenStepsToo) {
  for (const bool shards : {false, true})
    for (const uint64_t evaluate_every : {0u, 30u})
      for (const uint32_t collectives : {1u, 2u, 5u}) {
        SCOPED_TRACE(testing::Message() << "shards " << shards << ", evaluation " << evaluate_every
                                        << ", collectives " << collectives);
        SimulatedRanks ranks(3, 4);
        ranks.shards = shards;
        ranks.evaluate_every = evaluate_every;
        ranks.checkpoint_every = 30;
        ranks.collectives_a_phase = collectives;
        ranks.early_collectives = collectives / 2;
        HangDetector detector(kPolicy, 3, ranks.now());
        ranks.inject(Fault::kSkipped, 1, 30, Phase::kAllReduce);
        while (!ranks.stuck())
          ASSERT_FALSE(watch(ranks, detector, kPoll));
        const auto verdict = watch(ranks, detector, 30);
        ASSERT_TRUE(verdict);
        EXPECT_EQ(verdict->rank, 1);
        EXPECT_EQ(verdict->kind, HangKind::kSkippedCollective);
        EXPECT_EQ(verdict->step, 30u);
        EXPECT_EQ(verdict->phase, Phase::kAllReduce);
      }
}

TEST(Hang, ARankStoppedInsideACollectiveIsTheCulprit) {
  for (const Phase phase : {Phase::kAllReduce, Phase::kAllGatherWeights, Phase::kAllGatherState}) {
    SimulatedRanks ranks(4, 5);
    ranks.shards = phase != Phase::kAllReduce;
    ranks.checkpoint_every = 30;
    spec::HangSection policy = kPolicy;
    policy.evaluation_seconds = 200; // this limit does not hold for a checkpoint's state
    HangDetector detector(policy, 4, ranks.now());
    ranks.inject(Fault::kStopped, 2, 30, phase);
    const auto verdict = watch(ranks, detector, 60);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->rank, 2);
    EXPECT_EQ(verdict->kind, HangKind::kStopped);
    EXPECT_EQ(verdict->phase, phase);
  }
}

// The all-gather of state moves at most as much data as three steps do. So the limit of a
// checkpoint does not apply.
TEST(Hang, ARankThatIsStuckAsStateIsGatheredIsFoundWithinAStepsLimit) {
  SimulatedRanks ranks(4, 5);
  ranks.shards = true;
  ranks.checkpoint_every = 30;
  spec::HangSection policy = kPolicy;
  policy.checkpoint_seconds = policy.evaluation_seconds = 1000;
  HangDetector detector(policy, 4, ranks.now());
  ranks.inject(Fault::kDeadlocked, 2, 30, Phase::kAllGatherState);
  const auto verdict = watch(ranks, detector, 60);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 2);
  EXPECT_EQ(verdict->kind, HangKind::kDeadlocked) << "its peers are in a collective, it is in none";
  EXPECT_EQ(verdict->phase, Phase::kAllGatherState);
  EXPECT_THAT(verdict->witnesses, Contains(HasSubstr("rank 0, 1, 3 waits in a collective for it")));
}

TEST(Hang, ARankThatStalledBeforeItsAttemptWasAdoptedIsFoundByTheCeiling) {
  SimulatedRanks ranks(2, 5);
  ranks.inject(Fault::kSpinning, 1, 30, Phase::kForward);
  while (!ranks.stuck())
    ranks.advance(0.1);
  spec::HangSection policy = kPolicy;
  policy.first_step_seconds = 1000;
  HangDetector detector(policy, 2, ranks.now(), /*first_step_done=*/true);
  const auto verdict = watch(ranks, detector, policy.ceiling_seconds + 5);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
}

// ---- hosts that run ahead of their devices ------------------------------------------------------

struct DeviceFault {
  Fault fault;
  HangKind kind;
  bool at_the_end = false, lengths_matter = false;
};

class OnDevices : public ::testing::TestWithParam<DeviceFault> {};

TEST_P(OnDevices, TheRightRankIsNamed) {
  std::mt19937 random(7);
  for (int round = 0; round < 59; ++round) {
    const int count = 2 + static_cast<int>(random() % 7);
    constexpr uint64_t kSteps = 60;
    SimulatedDevices ranks(count, kSteps, random());
    ranks.lengths_matter = GetParam().lengths_matter;
    ranks.shards = round % 2 == 1;
    HangDetector detector(kPolicy, count, ranks.now());
    const auto culprit = static_cast<Rank>(random() % static_cast<unsigned>(count));
    const uint64_t step = GetParam().at_the_end ? kSteps : 25 + random() % 25;
    ranks.inject(GetParam().fault, culprit, step);
    const auto verdict = watch(ranks, detector, 60);
    ASSERT_TRUE(verdict) << "round " << round << ": not found";
    EXPECT_EQ(verdict->rank, culprit) << "round " << round << " of " << count << " ranks";
    EXPECT_EQ(verdict->kind, GetParam().kind);
    EXPECT_EQ(verdict->step, step);
    if (GetParam().fault == Fault::kDeadlocked || GetParam().fault == Fault::kSpinning) {
      EXPECT_EQ(verdict->phase, Phase::kBackward);
    } else {
      const bool of_weights = GetParam().fault == Fault::kSkipped && ranks.shards;
      EXPECT_EQ(verdict->phase, of_weights ? Phase::kAllGatherWeights : Phase::kAllReduce);
    }
    EXPECT_GE(verdict->witnesses.size(), 2u);
    if (GetParam().fault == Fault::kSkipped) {
      EXPECT_LT(verdict->detect_seconds, 1.0) << "it needs no stall";
      if (GetParam().lengths_matter || GetParam().at_the_end) continue;
      int times_over = 0;
      watch(ranks, detector, 1, nullptr, &times_over);
      EXPECT_EQ(times_over, 0) << "that they go on out of step clears nobody";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hang, OnDevices,
    ::testing::Values(DeviceFault{Fault::kSkipped, HangKind::kSkippedCollective},
                      DeviceFault{Fault::kSkipped, HangKind::kSkippedCollective, false, true},
                      DeviceFault{Fault::kSkipped, HangKind::kSkippedCollective, true},
                      DeviceFault{Fault::kDeadlocked, HangKind::kDeadlocked},
                      DeviceFault{Fault::kCollective, HangKind::kStuckCollective},
                      DeviceFault{Fault::kSpinning, HangKind::kStuckDevice}),
    [](const auto& info) {
      const DeviceFault& f = info.param;
      return std::string(f.fault == Fault::kSkipped      ? "Skipped"
                         : f.fault == Fault::kDeadlocked ? "Deadlocked"
                         : f.fault == Fault::kCollective ? "Collective"
                                                         : "SpinningKernel") +
             (f.at_the_end ? "InTheLastStep" : "") + (f.lengths_matter ? "OfAnotherLength" : "");
    });

TEST(Hang, NoVerdictWhereHostsRunAhead) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    const int count = 1 + static_cast<int>(seed);
    SimulatedDevices ranks(count, 1'000, seed);
    ranks.shards = seed % 2 == 1;
    HangDetector detector(kPolicy, count, ranks.now());
    while (ranks.least_step() < 1'000) {
      const auto verdict = watch(ranks, detector, 5);
      ASSERT_FALSE(verdict) << name_of(verdict->kind) << " of rank " << verdict->rank << ": "
                            << verdict->witnesses[0];
    }
  }
}

TEST(Hang, WhatWasLearnedOutlivesNsad) {
  for (const bool stalled_before : {true, false}) {
    SimulatedRanks ranks(3, 7);
    HangDetector first(kPolicy, 3, ranks.now());
    ASSERT_FALSE(watch(ranks, first, 30));
    const Learned learned = nlohmann::json(first.limits().learned()).get<Learned>();
    ASSERT_EQ(learned, first.limits().learned());
    ASSERT_GT(learned.steps.count, 20u);
    ranks.inject(Fault::kSpinning, 1, ranks.least_step() + 3, Phase::kForward);
    while (stalled_before && !ranks.stuck())
      ranks.advance(0.1);
    HangDetector next(kPolicy, 3, ranks.now(), /*first_step_done=*/true, learned);
    EXPECT_EQ(next.limits().limit(Phase::kForward, true),
              first.limits().limit(Phase::kForward, true));
    while (!ranks.stuck())
      ASSERT_FALSE(watch(ranks, next, kPoll));
    const auto verdict = watch(ranks, next, kPolicy.floor_seconds + 2);
    ASSERT_TRUE(verdict) << "within the learned limit, far below the ceiling";
    EXPECT_EQ(verdict->rank, 1);
    EXPECT_EQ(verdict->kind, HangKind::kSpinning);
  }
}

// The work has evaluations, checkpoints, slow steps, slow disks and starved CPUs. There are 1 to 7
// ranks, with and without shards, and steps take from 0.1 to 30 seconds. NSA_SIMULATED_HOURS makes
// the simulation longer.
TEST(Hang, NoVerdictIn100000StepsOfWork) {
  constexpr double kStepSeconds[] = {0.1, 0.5, 2, 10, 30};
  const char* asked = std::getenv("NSA_SIMULATED_HOURS");
  const double least_hours = asked ? std::atof(asked) : 0;
  uint64_t total = 0;
  double hours = 0;
  for (unsigned seed = 1; total < 100'000 || hours < least_hours; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int count = 1 + static_cast<int>(seed % 4) * (seed % 3 == 0 ? 2 : 1);
    SimulatedRanks ranks(count, seed);
    ranks.usual_step = kStepSeconds[seed % 5];
    ranks.slowness = seed % 8 < 4 ? 1.1 : 3;
    ranks.slow_chance = 1.0 / 200;
    ranks.starved_share = seed % 7 < 2 ? 0.6 : 0;
    ranks.disk_stall_chance = seed % 3 == 0 ? 0.001 : 0;
    ranks.disk_seconds = 15;
    ranks.shards = seed % 2 == 1;
    ranks.early_collectives = seed % 3;
    ranks.checkpoint_every = 50;
    ranks.evaluate_every = 70; // step 350 has an evaluation and a checkpoint
    ranks.rare_phase_seconds = 10 * ranks.usual_step;
    const MonotonicTime begin = ranks.now();
    spec::HangSection policy;
    // Long evaluations and checkpoints need such limits.
    policy.evaluation_seconds = policy.checkpoint_seconds = 3000;
    HangDetector detector(policy, count, ranks.now());
    const uint64_t steps = ranks.usual_step > 5 ? 160 : ranks.usual_step > 1 ? 1'000 : 8'000;
    while (ranks.least_step() < steps) {
      const auto verdict = watch(ranks, detector, 10);
      ASSERT_FALSE(verdict) << name_of(verdict->kind) << " of rank " << verdict->rank << " in step "
                            << verdict->step << " after " << verdict->detect_seconds << " s";
    }
    total += steps;
    hours += to_seconds(ranks.now() - begin) / 3600;
  }
  RecordProperty("steps", std::to_string(total));
  RecordProperty("hours", std::to_string(hours));
}

// The observer did not run (a suspended machine, a busy disk), and neither did the ranks.
TEST(Hang, TheObserversOwnDelayDoesNotCount) {
  SimulatedRanks ranks(2, 9);
  HangDetector detector(kPolicy, 2, ranks.now());
  ASSERT_FALSE(watch(ranks, detector, 20));
  // This is the worst moment for it: one rank computes, and the other waits for it.
  auto frozen = ranks.samples();
  while (frozen[0].host->phase != Phase::kAllReduce || frozen[1].host->phase == Phase::kAllReduce) {
    ranks.advance(0.01);
    frozen = ranks.samples();
  }
  ASSERT_FALSE(detector.observe(frozen, ranks.now()).verdict);
  MonotonicTime now = ranks.now() + std::chrono::seconds(40);
  for (int poll = 0; poll < 15; ++poll, now = now + std::chrono::milliseconds(100))
    ASSERT_FALSE(detector.observe(frozen, now).verdict) << "after " << poll << " polls";
}

TEST(Hang, ASecondWitnessIsNeededBelowTheCeiling) {
  // With a single rank no peer can wait, and a spinning CPU is no witness.
  SimulatedRanks ranks(1, 3);
  HangDetector detector(kPolicy, 1, ranks.now());
  ranks.inject(Fault::kSpinning, 0, 30, Phase::kForward);
  while (!ranks.stuck())
    ASSERT_FALSE(watch(ranks, detector, kPoll));
  std::vector<SlowStep> slow;
  EXPECT_FALSE(watch(ranks, detector, kPolicy.ceiling_seconds - 1, &slow));
  ASSERT_EQ(slow.size(), 1u) << "said once";
  EXPECT_EQ(slow[0].rank, 0);
  EXPECT_EQ(slow[0].step, 30u);
  const auto verdict = watch(ranks, detector, 5);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->witnesses, Contains(HasSubstr("ceiling")));
}

TEST(Hang, PeersThatWaitAreNamedAsWitnesses) {
  SimulatedRanks ranks(3, 8);
  HangDetector detector(kPolicy, 3, ranks.now());
  ranks.inject(Fault::kDeadlocked, 1, 40, Phase::kBackward);
  const auto verdict = watch(ranks, detector, 60);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->witnesses,
              Contains(AllOf(HasSubstr("rank 0, 2"), HasSubstr("waits in a collective"))));
}

TEST(Hang, WithADebuggerAttachedItIsOnlyObserved) {
  SimulatedRanks ranks(2, 4);
  HangDetector detector(kPolicy, 2, ranks.now());
  ranks.inject(Fault::kDeadlocked, 1, 30, Phase::kForward);
  std::optional<Verdict> verdict;
  for (double passed = 0; passed < 60 && !verdict; passed += kPoll) {
    ranks.advance(kPoll);
    auto samples = ranks.samples();
    samples[1].process.tracer = 77;
    verdict = detector.observe(samples, ranks.now()).verdict;
  }
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->kind, HangKind::kTraced);
  EXPECT_EQ(verdict->tracer, 77);
}

TEST(Hang, AVerdictIsGivenOnceAndWithdrawnWhenTheRankMoves) {
  SimulatedRanks ranks(2, 6);
  HangDetector detector(kPolicy, 2, ranks.now());
  ranks.inject(Fault::kStopped, 0, 30, Phase::kForward);
  ASSERT_TRUE(watch(ranks, detector, 60));
  int times_over = 0;
  EXPECT_FALSE(watch(ranks, detector, 30, nullptr, &times_over)) << "the same hang twice";
  EXPECT_EQ(times_over, 0);
  ranks.heal();
  EXPECT_FALSE(watch(ranks, detector, 2, nullptr, &times_over));
  EXPECT_EQ(times_over, 1);
  ranks.inject(Fault::kStopped, 1, ranks.least_step() + 5, Phase::kBackward);
  // The pause counts as a long step, so the limits rise, at most to the ceiling.
  const auto second = watch(ranks, detector, kPolicy.ceiling_seconds + 3);
  ASSERT_TRUE(second) << "after a withdrawal the next hang is found";
  EXPECT_EQ(second->rank, 1);
}

} // namespace
} // namespace nsa::state
