#include "common/net/shares.h"

#include <gtest/gtest.h>

namespace nsa::net {
namespace {

constexpr uint32_t kAlice = 1, kBob = 2;

Shares shares_of(size_t all, size_t one, double rate = 10, double burst = 5) {
  return Shares({all, one, rate, burst});
}

void connect(Shares& shares, uint32_t caller, int times) {
  for (int i = 0; i < times; ++i)
    shares.connect(caller);
}

TEST(Shares, WhoHasItsShareGivesWayToItself) {
  Shares shares = shares_of(10, 3);
  connect(shares, kAlice, 2);
  EXPECT_FALSE(shares.who_makes_room(kAlice));
  connect(shares, kAlice, 1);
  EXPECT_EQ(shares.who_makes_room(kAlice), kAlice);
  EXPECT_FALSE(shares.who_makes_room(kBob)) << "that is nobody else's trouble";
  shares.disconnect(kAlice);
  EXPECT_FALSE(shares.who_makes_room(kAlice));
}

TEST(Shares, WhenAllIsTakenTheGreediestGivesWay) {
  Shares shares = shares_of(6, 5);
  connect(shares, kAlice, 5);
  connect(shares, kBob, 1);
  EXPECT_EQ(shares.who_makes_room(kBob), kAlice);
  EXPECT_EQ(shares.who_makes_room(3), kAlice);
  shares.disconnect(kAlice);
  shares.disconnect(kAlice);
  connect(shares, kBob, 2);
  EXPECT_EQ(shares.who_makes_room(kBob), kBob) << "both have three: nobody is pushed out in turn";
}

TEST(Shares, RequestsBeyondTheBurstComeInTurn) {
  Shares shares = shares_of(10, 3, 10, 5);
  const MonotonicTime start{1'000'000'000'000};
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(shares.delay_request(kAlice, start), Duration{});
  EXPECT_NEAR(to_seconds(shares.delay_request(kAlice, start)), 0.1, 1e-9);
  EXPECT_NEAR(to_seconds(shares.delay_request(kAlice, start)), 0.2, 1e-9);
  EXPECT_EQ(shares.delay_request(kBob, start), Duration{}) << "another user waits for nothing";
  const MonotonicTime later = start + std::chrono::seconds(10);
  EXPECT_EQ(shares.delay_request(kAlice, later), Duration{}) << "the rate has paid it back";
}

TEST(Shares, CallersThatAreGoneAreForgottenAndOthersAreNot) {
  Shares shares = shares_of(10'000, 10);
  const MonotonicTime start{1'000'000'000'000};
  connect(shares, kAlice, 10);
  for (uint32_t caller = 100; caller < 5'000; ++caller)
    (void)shares.delay_request(caller, start + std::chrono::seconds(caller));
  EXPECT_EQ(shares.who_makes_room(kAlice), kAlice);
}

} // namespace
} // namespace nsa::net
