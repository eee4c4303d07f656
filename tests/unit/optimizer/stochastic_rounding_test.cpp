#include "worker/optimizer/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cmath>

namespace nsa::train {
namespace {

TEST(StochasticRounding, IsExactOnAverageAndLeavesBf16ValuesAlone) {
  constexpr int64_t kDraws = 1 << 18; // of each value
  const at::Tensor updates = at::full({}, 7.0f);
  for (const float value : {1.0f + 0x1p-9f, -1.0f - 0x1p-11f, 3e-5f, -2.7182818f, 1e-30f}) {
    const at::Tensor from = at::full({kDraws}, value);
    const at::Tensor to = at::empty({kDraws}, at::kBFloat16);
    round_stochastically(from, to, 3, updates, 0);
    const at::Tensor wide = to.to(at::kDouble);
    const double below = wide.min().item<double>(), above = wide.max().item<double>();
    const double step = above - below; // one step of BF16 around the value
    EXPECT_LT(below, value);
    EXPECT_GT(above, value);
    EXPECT_LE(step, std::abs(value) * 0x1p-7);
    EXPECT_EQ((wide.eq(below).sum() + wide.eq(above).sum()).item<int64_t>(), kDraws);
    // The standard deviation of the mean of n draws is at most step / 2 / sqrt(n).
    EXPECT_NEAR(wide.mean().item<double>(), value, 4 * step / 2 / std::sqrt(double(kDraws)))
        << value;
  }
  at::manual_seed(1);
  const at::Tensor exact = at::randn({5000}).to(at::kBFloat16);
  at::Tensor to = at::empty_like(exact);
  round_stochastically(exact.to(at::kFloat), to, 3, updates, 0);
  EXPECT_TRUE(at::equal(to, exact));
  round_stochastically(at::full({5000}, INFINITY), to, 3, updates, 0);
  EXPECT_TRUE(to.isinf().all().item<bool>()) << "what is not finite stays so";
}

// The random bits depend only on (seed, update, index), and are otherwise uncorrelated.
TEST(StochasticRounding, DrawsByCounter) {
  constexpr int64_t kCount = 100000; // several chunks
  // In the middle, so both neighbours are equally likely.
  const at::Tensor from = at::full({kCount}, 1.0f + 0x1p-8f);
  const auto draw = [&](uint64_t seed, float update, int64_t first, int64_t count) {
    const at::Tensor to = at::empty({count}, at::kBFloat16);
    round_stochastically(from.narrow(0, 0, count), to, seed, at::full({}, update), first);
    return to.gt(1.0).to(at::kDouble);
  };
  const at::Tensor whole = draw(1, 5, 0, kCount);
  EXPECT_TRUE(at::equal(whole, draw(1, 5, 0, kCount)));
  EXPECT_TRUE(at::equal(whole.narrow(0, 40001, 1000), draw(1, 5, 40001, 1000)))
      << "the cut into chunks and parts does not matter";
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  EXPECT_TRUE(at::equal(whole, draw(1, 5, 0, kCount)));
  at::set_num_threads(threads);
  const auto correlation = [&](const at::Tensor& a, const at::Tensor& b) {
    return ((a - 0.5) * (b - 0.5)).mean().item<double>() * 4;
  };
  const double limit = 5 / std::sqrt(double(kCount - 1)); // five standard deviations
  EXPECT_LT(std::abs(correlation(whole, draw(2, 5, 0, kCount))), limit) << "another seed";
  EXPECT_LT(std::abs(correlation(whole, draw(1, 6, 0, kCount))), limit) << "another update";
  EXPECT_LT(std::abs(correlation(whole.narrow(0, 1, kCount - 1), whole.narrow(0, 0, kCount - 1))),
            limit)
      << "the neighbour";
}

} // namespace
} // namespace nsa::train
