// Which packed step reports nsad accepts.
#include "daemon/supervision/message_guard.h"

#include <gtest/gtest.h>

namespace nsa::control {
namespace {

std::optional<wire::RankStep> step_of(Rank rank) {
  wire::RankStep step;
  step.rank = rank;
  return step;
}

TEST(MessageGuardTest, AStepReportNamesARankOfItsShimAndPaysFromItsQuota) {
  const MonotonicTime now = MonotonicTime::now();
  wire::RankQuotas quotas;
  quotas.steps_per_second = 1;
  MessageGuard guard(quotas, 2, Duration::zero(), now, 4); // ranks 4 and 5
  EXPECT_TRUE(guard.may_say(step_of(4), 200));
  EXPECT_TRUE(guard.may_say(step_of(5), 200));
  EXPECT_TRUE(guard.take_due(now).empty());
  EXPECT_FALSE(guard.may_say(step_of(3), 200));
  EXPECT_FALSE(guard.may_say(step_of(6), 200));
  EXPECT_FALSE(guard.may_say(step_of(-1), 200));
  EXPECT_FALSE(guard.may_say(std::nullopt, 200));
  auto refused = guard.take_due(now);
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].what, "foreign rank numbers");
  EXPECT_EQ(refused[0].count, 3u);
  EXPECT_EQ(refused[1].what, "malformed frames");

  int taken = 0;
  while (taken < 1000 && guard.may_say(step_of(5), 200))
    ++taken;
  EXPECT_LT(taken, 100) << "a minute's worth may be saved up";
  refused = guard.take_due(now);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].rank, 5);
  EXPECT_EQ(refused[0].what, "steps");
  EXPECT_TRUE(guard.may_say(step_of(4), 200)) << "the others go on";
}

} // namespace
} // namespace nsa::control
