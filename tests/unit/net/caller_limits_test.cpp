#include "common/net/caller_limits.h"

#include <gtest/gtest.h>

namespace nsa::net {
namespace {

constexpr uint32_t kAlice = 1, kBob = 2;

CallerLimits limits_of(size_t all, size_t one, double rate = 10, double burst = 5) {
  return CallerLimits({all, one, rate, burst});
}

void connect(CallerLimits& limits, uint32_t caller, int times) {
  for (int i = 0; i < times; ++i)
    limits.connect(caller);
}

TEST(CallerLimits, WhoHasItsShareGivesWayToItself) {
  CallerLimits limits = limits_of(10, 3);
  connect(limits, kAlice, 2);
  EXPECT_FALSE(limits.who_makes_room(kAlice));
  connect(limits, kAlice, 1);
  EXPECT_EQ(limits.who_makes_room(kAlice), kAlice);
  EXPECT_FALSE(limits.who_makes_room(kBob)) << "that is nobody else's trouble";
  limits.disconnect(kAlice);
  EXPECT_FALSE(limits.who_makes_room(kAlice));
}

TEST(CallerLimits, WhenAllIsTakenTheGreediestGivesWay) {
  CallerLimits limits = limits_of(6, 5);
  connect(limits, kAlice, 5);
  connect(limits, kBob, 1);
  EXPECT_EQ(limits.who_makes_room(kBob), kAlice);
  EXPECT_EQ(limits.who_makes_room(3), kAlice);
  limits.disconnect(kAlice);
  limits.disconnect(kAlice);
  connect(limits, kBob, 2);
  EXPECT_EQ(limits.who_makes_room(kBob), kBob) << "both have three: nobody is pushed out in turn";
}

TEST(CallerLimits, RequestsBeyondTheBurstComeInTurn) {
  CallerLimits limits = limits_of(10, 3, 10, 5);
  const MonotonicTime start{1'000'000'000'000};
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(limits.delay_request(kAlice, start), Duration{});
  EXPECT_NEAR(to_seconds(limits.delay_request(kAlice, start)), 0.1, 1e-9);
  EXPECT_NEAR(to_seconds(limits.delay_request(kAlice, start)), 0.2, 1e-9);
  EXPECT_EQ(limits.delay_request(kBob, start), Duration{}) << "another user waits for nothing";
  const MonotonicTime later = start + std::chrono::seconds(10);
  EXPECT_EQ(limits.delay_request(kAlice, later), Duration{}) << "the rate has paid it back";
}

TEST(CallerLimits, CallersThatAreGoneAreForgottenAndOthersAreNot) {
  CallerLimits limits = limits_of(10'000, 10);
  const MonotonicTime start{1'000'000'000'000};
  connect(limits, kAlice, 10);
  for (uint32_t caller = 100; caller < 5'000; ++caller)
    (void)limits.delay_request(caller, start + std::chrono::seconds(caller));
  EXPECT_EQ(limits.who_makes_room(kAlice), kAlice);
}

} // namespace
} // namespace nsa::net
