// The statistics of `nsactl ab` on simulated pairs. They find the difference that was put in, and
// no other.
#include "cli/paired_difference.h"

#include <cmath>
#include <gmock/gmock.h>
#include <numbers>
#include <random>

namespace nsa::cli {
namespace {

using testing::HasSubstr;

// Normally distributed numbers that are the same with every standard library. Only the engines of
// <random> are the same everywhere; its distributions are not.
class Normal {
public:
  Normal(uint32_t seed, double deviation) : random_(seed), deviation_(deviation) {}
  double next() { // the Box-Muller transform
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return deviation_ * radius * std::cos(2 * std::numbers::pi * uniform());
  }

private:
  double uniform() { return (static_cast<double>(random_()) + 0.5) / 4294967296.0; }
  std::mt19937 random_;
  double deviation_;
};

// Simulates a host that slows down by a third during the experiment. Each run has its own noise.
// The order within a pair alternates, as in `nsactl ab`.
std::vector<PairOfValues> simulate(uint32_t seed, size_t pairs, double planted, double noise) {
  Normal normal(seed, noise);
  std::vector<PairOfValues> values;
  for (size_t pair = 0; pair < pairs; ++pair) {
    const auto run = [&](size_t place, double factor) {
      const double drift =
          1 - static_cast<double>(2 * pair + place) / (6.0 * static_cast<double>(pairs));
      return 1e5 * drift * factor * std::exp(normal.next());
    };
    const bool a_first = pair % 2 == 0;
    const double a = run(a_first ? 0 : 1, 1), b = run(a_first ? 1 : 0, planted);
    values.push_back({a, b, !a_first});
  }
  return values;
}

// Returns how many of 1,000 experiments have this verdict.
int count_of(AbVerdict verdict, double planted, double noise, size_t pairs = 10) {
  int count = 0;
  for (uint32_t seed = 1; seed <= 1000; ++seed)
    count += paired_difference(simulate(seed, pairs, planted, noise), 0.99)->verdict == verdict;
  return count;
}

TEST(PairedDifference, TwoPercentAreFound) {
  EXPECT_GE(count_of(AbVerdict::kLess, 0.98, 0.004), 950);
  EXPECT_GE(count_of(AbVerdict::kMore, 1.02, 0.004), 950);
  EXPECT_EQ(count_of(AbVerdict::kMore, 0.98, 0.004), 0) << "the wrong direction";
}

TEST(PairedDifference, NothingIsUndecided) {
  for (const double noise : {0.001, 0.004, 0.1})
    EXPECT_GE(count_of(AbVerdict::kUndecided, 1, noise), 980) << noise;
}

TEST(PairedDifference, TheIntervalHoldsWhatWasPlanted) {
  int held = 0;
  for (uint32_t seed = 1; seed <= 1000; ++seed) {
    const auto found = paired_difference(simulate(seed, 8, 1.05, 0.02), 0.9);
    held += found->low <= 1.05 && 1.05 <= found->high;
  }
  EXPECT_NEAR(held, 900, 35);
}

TEST(PairedDifference, QuantilesAreThoseOfTables) {
  EXPECT_NEAR(student_t(0.95, 1), 12.7062, 1e-4);
  EXPECT_NEAR(student_t(0.95, 9), 2.2622, 1e-4);
  EXPECT_NEAR(student_t(0.99, 9), 3.2498, 1e-4);
  EXPECT_NEAR(student_t(0.999, 5), 6.8688, 1e-4);
  EXPECT_NEAR(student_t(0.99, 1000), 2.5808, 1e-4);
}

TEST(PairedDifference, TheNumberOfPairsThatItNamesIsEnough) {
  const size_t pairs = pairs_to_show(1.02, 0.03 * std::sqrt(2.0), 0.99);
  EXPECT_GT(pairs, 40u);
  EXPECT_NEAR(count_of(AbVerdict::kMore, 1.02, 0.03, pairs), 800, 60);
  EXPECT_LT(count_of(AbVerdict::kMore, 1.02, 0.03, 10), 200);
}

TEST(PairedDifference, WordsSayWhatWasFound) {
  const std::vector<PairOfValues> slower = {{100, 90}, {100, 91, true}, {100, 89}, {100, 90, true}};
  const auto less = paired_difference(slower, 0.95);
  ASSERT_TRUE(less);
  EXPECT_THAT(verdict_text(*less, "tokens_per_second", "k=1", "k=2"),
              HasSubstr("k=2 has 10.0 % less tokens_per_second than k=1 (95 % interval: "));
  const std::vector<PairOfValues> same = {{3, 3}, {4, 4, true}, {5, 5}};
  EXPECT_EQ(verdict_text(*paired_difference(same, 0.99), "loss", "k=1", "k=2"),
            "undecided: k=1 and k=2 have the same loss in all 3 pairs");
  const std::vector<PairOfValues> noisy = {
      {100, 120}, {100, 85, true}, {100, 104}, {100, 95, true}};
  const std::string text = verdict_text(*paired_difference(noisy, 0.99), "loss", "k=1", "k=2");
  EXPECT_THAT(text, HasSubstr("undecided: loss of k=2 is between "));
  EXPECT_THAT(text, HasSubstr("pairs would show a difference of 2 %"));
}

TEST(PairedDifference, WhatHasNoIntervalIsRefused) {
  EXPECT_FALSE(paired_difference({{1, 2}, {1, 2, true}}, 0.99)) << "two pairs";
  EXPECT_FALSE(paired_difference({{1, 2}, {1, 2}, {1, 2}}, 0.99)) << "one order";
  EXPECT_FALSE(paired_difference({{1, 2}, {0, 1, true}, {1, 2}}, 0.99));
  EXPECT_FALSE(paired_difference({{1, 2}, {1, std::nan(""), true}, {1, 2}}, 0.99));
  EXPECT_FALSE(paired_difference({{1, 2}, {1, 2, true}, {1, 2}}, 1));
}

} // namespace
} // namespace nsa::cli
