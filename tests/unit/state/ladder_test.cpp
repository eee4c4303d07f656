// Tests which rung a run takes, when it leaves it, and when it takes it again.
#include "daemon/state/ladder.h"

#include <gtest/gtest.h>

namespace nsa::state {
namespace {

spec::Ladder two_rungs() {
  spec::Ladder ladder;
  ladder.base = {{"parallel.compress", "\"int8\""}, {"toggles.cuda.graphs", "true"}};
  ladder.rungs = {{{wire::FailureClass::kNetwork}, 1, {{"parallel.compress", "\"off\""}}},
                  {{wire::FailureClass::kNetwork, wire::FailureClass::kCrash},
                   2,
                   {{"toggles.cuda.graphs", "false"}}}};
  ladder.climb_after_steps = 10;
  return ladder;
}

TEST(Ladder, TakesTheFirstRungThatAnswersAndWaitsForItsFailures) {
  const spec::Ladder ladder = two_rungs();
  Standing standing;
  EXPECT_EQ(next_rung(ladder, standing, wire::FailureClass::kData, false), std::nullopt);
  standing.failures[wire::FailureClass::kNetwork] = 1;
  EXPECT_EQ(next_rung(ladder, standing, wire::FailureClass::kNetwork, false), 0);
  standing.failures = {{wire::FailureClass::kCrash, 1}};
  EXPECT_EQ(next_rung(ladder, standing, wire::FailureClass::kCrash, false), std::nullopt);
  EXPECT_EQ(next_rung(ladder, standing, wire::FailureClass::kCrash, true), 1)
      << "the run would end otherwise";
}

spec::Ladder fewer_ranks() {
  spec::Ladder ladder;
  for (const std::string_view key : spec::kLadderNumbers)
    ladder.base[std::string(key)] = "1";
  ladder.base["parallel.ranks"] = "4";
  ladder.rungs.resize(3);
  ladder.rungs[0] = {{wire::FailureClass::kHardware}, 1, {}, 2};
  ladder.rungs[1] = {{wire::FailureClass::kNetwork}, 1, {}, 1};
  ladder.rungs[2] = {{wire::FailureClass::kHardware, wire::FailureClass::kCrash}, 5, {}, 1};
  return ladder;
}

TEST(Ladder, AMissingGpuTakesTheFirstRungThatFits) {
  const spec::Ladder ladder = fewer_ranks();
  Standing standing;
  const auto rung = [&](wire::FailureClass failure, int slots) {
    return rung_for_slots(ladder, standing, failure, slots);
  };
  EXPECT_EQ(rung(wire::FailureClass::kHardware, 3), 0);
  EXPECT_EQ(rung(wire::FailureClass::kHardware, 1), 2) << "one of network does not answer";
  EXPECT_EQ(rung(wire::FailureClass::kNetwork, 1), 1);
  EXPECT_EQ(rung(wire::FailureClass::kCrash, 3), 0) << "a lost GPU is hardware, too";
  EXPECT_EQ(rung(wire::FailureClass::kHardware, 0), std::nullopt);
  standing.active = {0};
  EXPECT_EQ(rung(wire::FailureClass::kHardware, 1), 2);
}

TEST(Ladder, RungsThatAreToldAreChecked) {
  const spec::Ladder ladder = fewer_ranks();
  EXPECT_TRUE(are_rungs_of(ladder, {}));
  EXPECT_TRUE(are_rungs_of(ladder, {2, 0}));
  for (const std::vector<int>& wrong : {std::vector<int>{3}, {-1}, {1, 1}})
    EXPECT_FALSE(are_rungs_of(ladder, wrong));
}

TEST(Ladder, TriesNoSetTwice) {
  spec::Ladder ladder = two_rungs();
  ladder.rungs[1].set = ladder.rungs[0].set; // both rungs lead to the same settings
  Standing standing;
  take_rung(ladder, standing, 0, wire::FailureClass::kNetwork, {});
  standing.failures[wire::FailureClass::kNetwork] = 5;
  EXPECT_EQ(next_rung(ladder, standing, wire::FailureClass::kNetwork, true), std::nullopt);
}

TEST(Ladder, GoesBackToNoSetThatFailedBefore) {
  spec::Ladder ladder = two_rungs();
  ladder.rungs[1].set = {{"parallel.compress", "\"int8\""}}; // the same value as without a rung
  Standing standing;
  take_rung(ladder, standing, 0, wire::FailureClass::kNetwork, {});
  EXPECT_EQ(next_rung(ladder, standing, wire::FailureClass::kNetwork, true), std::nullopt);
}

TEST(Ladder, ATrialBeginsAndPassesAfterAsManySteps) {
  const spec::Ladder ladder = two_rungs(); // the trial takes ten steps
  Standing standing;
  take_rung(ladder, standing, 0, wire::FailureClass::kNetwork, {});
  standing.since_step = 100;
  EXPECT_EQ(rung_to_leave(ladder, standing, 110), std::nullopt) << "no attempt has begun on it";
  standing.begins = false;
  EXPECT_EQ(rung_to_leave(ladder, standing, 109), std::nullopt);
  EXPECT_EQ(rung_to_leave(ladder, standing, 110), 0);
  leave_rung(standing, 0, {});
  EXPECT_FALSE(trial_passed(ladder, standing, 110));
  standing.begins = false;
  standing.since_step = 110;
  EXPECT_FALSE(trial_passed(ladder, standing, 119));
  EXPECT_TRUE(trial_passed(ladder, standing, 120));
}

// A run climbed, trained well, and fails much later. The rung that worked is available again.
TEST(Ladder, ARungThatWorkedIsTakenAgain) {
  const spec::Ladder ladder = two_rungs();
  Standing standing;
  take_rung(ladder, standing, 0, wire::FailureClass::kNetwork, {});
  leave_rung(standing, 0, {});
  EXPECT_EQ(standing.trial, 0);
  EXPECT_TRUE(standing.active.empty());
  standing.trial.reset(); // the trial is over
  standing.failures[wire::FailureClass::kNetwork] = 1;
  EXPECT_EQ(next_rung(ladder, standing, wire::FailureClass::kNetwork, false), 0);
  take_rung(ladder, standing, 0, wire::FailureClass::kNetwork, {});
  standing.begins = false;
  EXPECT_EQ(rung_to_leave(ladder, standing, 1000), std::nullopt) << "each rung is left once";
}

TEST(Ladder, ItsTextSaysWhy) {
  const spec::Ladder ladder = two_rungs();
  Standing standing;
  EXPECT_EQ(standing_text(ladder, standing), "");
  take_rung(ladder, standing, 0, wire::FailureClass::kNetwork, {});
  EXPECT_EQ(standing_text(ladder, standing),
            "rung 1 of 2 after network: parallel.compress \"int8\" -> \"off\"");
  Standing recovered; // of a run that was recovered without its ledger
  recovered.active = {0};
  EXPECT_EQ(standing_text(ladder, recovered), "rung 1 of 2, for a reason that was lost with the "
                                              "ledger: parallel.compress \"int8\" -> \"off\"");
}

} // namespace
} // namespace nsa::state
