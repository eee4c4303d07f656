#include "worker/data/permutation.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

namespace nsa::data {
namespace {

void expect_bijective(int64_t size, uint64_t seed, int64_t epoch) {
  const Permutation permutation(size, seed, epoch);
  std::vector<bool> seen(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int64_t at = permutation(i);
    ASSERT_GE(at, 0);
    ASSERT_LT(at, size);
    ASSERT_FALSE(seen[static_cast<size_t>(at)]) << size << " " << seed << " " << epoch << " " << i;
    seen[static_cast<size_t>(at)] = true;
  }
}

TEST(Permutation, IsOneToOneForEverySize) {
  for (int64_t size = 1; size <= 600; ++size)
    expect_bijective(size, static_cast<uint64_t>(size) * 977, size % 5);
  for (const int64_t size : {4095, 4096, 4097, 65537, 1 << 20, 1'000'003})
    expect_bijective(size, 42, 3);
}

TEST(Permutation, SeedAndEpochEachChangeTheOrder) {
  constexpr int64_t kSize = 10'000;
  const Permutation base(kSize, 1, 0);
  for (const Permutation& other : {Permutation(kSize, 2, 0), Permutation(kSize, 1, 1)}) {
    int64_t same = 0;
    for (int64_t i = 0; i < kSize; ++i)
      same += base(i) == other(i);
    EXPECT_LT(same, 12); // two random permutations have 1 in common on average
  }
}

// Over many seeds, index 0 and index 1 go to every place about equally often (chi-squared test).
TEST(Permutation, EveryPlaceIsEquallyLikely) {
  for (const int64_t size : {3, 5, 10, 37}) {
    for (const int64_t index : {0, 1}) {
      constexpr int kTrials = 20'000;
      std::vector<double> count(static_cast<size_t>(size));
      for (int trial = 0; trial < kTrials; ++trial)
        ++count[static_cast<size_t>(Permutation(size, static_cast<uint64_t>(trial), 0)(index))];
      const double expected = kTrials / static_cast<double>(size);
      double chi_squared = 0;
      for (const double c : count)
        chi_squared += (c - expected) * (c - expected) / expected;
      const double freedom = static_cast<double>(size - 1);
      EXPECT_LT(chi_squared, freedom + 5 * std::sqrt(2 * freedom)) << size << " index " << index;
    }
  }
}

// A shuffle must separate neighbours: their mean distance afterwards is N / 3.
TEST(Permutation, NeighboursAreTornApart) {
  constexpr int64_t kSize = 100'000;
  const Permutation permutation(kSize, 9, 0);
  double sum = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i)
    sum += static_cast<double>(std::abs(permutation(i + 1) - permutation(i)));
  EXPECT_NEAR(sum / kSize, kSize / 3.0, kSize * 0.01);
}

// Checkpoints store only an index, so the order must never change between versions of this program.
TEST(Permutation, TheOrderIsPinned) {
  const Permutation permutation(1000, 7, 2);
  std::vector<int64_t> first;
  for (int64_t i = 0; i < 8; ++i)
    first.push_back(permutation(i));
  EXPECT_EQ(first, (std::vector<int64_t>{421, 353, 823, 538, 71, 575, 356, 633}));
}

} // namespace
} // namespace nsa::data
