// What a rank may send per second, and how the excess is reported. The test sets the clock.
#include "daemon/shim/client/rank_quota.h"

#include <gtest/gtest.h>

namespace nsa::shim {
namespace {

using namespace std::chrono_literals;
using wire::MessageType;

constexpr MonotonicTime kStart{1'000'000'000'000};
constexpr wire::RankQuotas kQuotas{10, 100, 1000};

TEST(TokenBucket, HoldsAMinutesWorthAndRefillsAtItsRate) {
  TokenBucket bucket(10, kStart);
  for (int i = 0; i < 600; ++i)
    ASSERT_TRUE(bucket.take(1, kStart)) << i;
  EXPECT_FALSE(bucket.take(1, kStart));
  EXPECT_FALSE(bucket.take(1, kStart + 500ms)) << "dry until a second's worth is there";
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(bucket.take(1, kStart + 1s)) << i;
  EXPECT_FALSE(bucket.take(1, kStart + 1s));
  int taken = 0;
  while (bucket.take(1, kStart + 24h))
    ++taken;
  EXPECT_EQ(taken, 600) << "a day saves no more than a minute's";
}

TEST(TokenBucket, WhatIsGrantedBeyondAMinuteStaysUntilItIsUsed) {
  TokenBucket bucket(10, kStart);
  bucket.grant(1h);
  int taken = 0;
  while (bucket.take(1, kStart + 1s))
    ++taken;
  EXPECT_EQ(taken, 36'600);
}

TEST(TokenBucket, AClockThatGoesBackGivesNothing) {
  TokenBucket bucket(1, kStart);
  ASSERT_TRUE(bucket.take(60, kStart));
  EXPECT_FALSE(bucket.take(1, kStart + -1h));
  EXPECT_FALSE(bucket.take(1, kStart));
  EXPECT_TRUE(bucket.take(1, kStart + 1s));
}

TEST(TokenBucket, WhatIsTakenAheadIsWaitedForInTurn) {
  TokenBucket bucket(10, 2, kStart);
  EXPECT_EQ(bucket.take_ahead(2, kStart), Duration{});
  EXPECT_NEAR(to_seconds(bucket.take_ahead(1, kStart)), 0.1, 1e-9);
  EXPECT_NEAR(to_seconds(bucket.take_ahead(1, kStart)), 0.2, 1e-9);
  EXPECT_FALSE(bucket.is_full(kStart + 300ms)) << "two are owed, two are missing";
  EXPECT_TRUE(bucket.is_full(kStart + 401ms));
}

TEST(TokenBucket, NoRateIsNoLimit) {
  TokenBucket bucket(0, kStart);
  EXPECT_TRUE(bucket.take(1e12, kStart));
}

TEST(RankQuota, AFloodOfEvaluationsDoesNotCrowdOutCheckpointsNorTheEnd) {
  RankQuota quota(kQuotas, kStart);
  int taken = 0;
  for (int i = 0; i < 309'406; ++i) // in 15 seconds, the rate of a flood that was observed
    taken += quota.take_message(MessageType::kRankEvaluation, 120, kStart + i * 48us) ? 1 : 0;
  EXPECT_LE(taken, 600 + 15 * 10);
  EXPECT_GE(taken, 600);
  EXPECT_TRUE(quota.take_message(MessageType::kRankCheckpoint, 300, kStart + 15s));
  EXPECT_TRUE(quota.take_message(MessageType::kRankError, 300, kStart + 15s));
  EXPECT_TRUE(quota.take_message(MessageType::kRankFinished, 60, kStart + 15s));
  EXPECT_TRUE(quota.take_message(MessageType::kRankStep, 400, kStart + 15s));
}

TEST(RankQuota, ALargeMessageCostsAsMuchAsManySmallOnes) {
  RankQuota quota(kQuotas, kStart);
  EXPECT_FALSE(quota.take_message(MessageType::kRankToggles, 1 << 20, kStart)) << "a mebibyte";
  EXPECT_TRUE(quota.take_message(MessageType::kRankToggles, 100 << 10, kStart + 1s));
  EXPECT_TRUE(quota.take_message(MessageType::kRankHello, 400 << 10, kStart + 1s));
  EXPECT_FALSE(quota.take_message(MessageType::kRankHello, 400 << 10, kStart + 1s));
}

TEST(RankQuota, LogsAreLimitedByBytes) {
  RankQuota quota(kQuotas, kStart);
  EXPECT_TRUE(quota.take_log(60'000, kStart));
  EXPECT_FALSE(quota.take_log(1, kStart));
  EXPECT_TRUE(quota.take_log(1000, kStart + 1s));
  EXPECT_NE(quota.why_no_log().find("quota.log_mib_per_second"), std::string::npos);
}

TEST(Refusals, AreToldWhenTheyBeginAndThenOnceAMinute) {
  Refusals refusals;
  int told = 0;
  uint64_t sum = 0;
  for (int second = 0; second < 300; ++second)
    for (int i = 0; i < 1000; ++i) {
      refusals.note(1, "events", 1, "too many");
      for (const wire::Refused& r : refusals.take_due(kStart + second * 1s)) {
        EXPECT_EQ(r.rank, 1);
        EXPECT_EQ(r.what, "events");
        EXPECT_EQ(r.why, "too many");
        sum += r.count;
        ++told;
      }
    }
  EXPECT_EQ(told, 5) << "at 0, 60, 120, 180 and 240 s";
  EXPECT_TRUE(refusals.waits());
  for (const wire::Refused& r : refusals.take_all(kStart + 300s))
    sum += r.count;
  EXPECT_EQ(sum, 300'000u) << "every one is counted once";
  EXPECT_FALSE(refusals.waits());
}

TEST(Refusals, EachRankAndKindHasItsAccount) {
  Refusals refusals;
  refusals.note(0, "events", 1, "a");
  refusals.note(0, "steps", 2, "b");
  refusals.note(1, "events", 3, "c");
  EXPECT_EQ(refusals.take_due(kStart).size(), 3u);
  refusals.note(1, "log bytes", 4, "d");
  ASSERT_EQ(refusals.take_due(kStart + 1s).size(), 1u) << "a new kind does not wait for the others";
}

} // namespace
} // namespace nsa::shim
