// The branches composed of plain attention, which a GPU runs with FlashAttention. They are compared
// with the chunked pass, which the oracle judges. On a CPU the pieces are dense products in FP64,
// so regrouping, pairs, merge and gradients must be equal except for rounding.
#include "nsa_model/ops/regrouped.h"
#include "nsa_model/ops/selection.h"
#include "tests/unit/ops/attention_case.h"

#include <gtest/gtest.h>

namespace nsa::ops {
namespace {

using at::Tensor;

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

void expect_like_chunked(Branch branch, int64_t length, const Sizes& sizes, int64_t groups) {
  const std::string what =
      "branch " + std::to_string(int(branch)) + ", S = " + std::to_string(length);
  const AttentionCase c({2, length, 4, groups, 8}, sizes, at::kDouble);
  BranchArguments arguments{
      branch, c.tensors.q, *c.tensors.k[int(branch)], *c.tensors.v[int(branch)], Tensor(),
      sizes,  0.3};
  if (branch == Branch::kSelected)
    arguments.indices = std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
  const Tensor o = at::empty_like(c.tensors.q), expected = at::empty_like(o);
  branch_forward(arguments, {expected, Tensor(), Tensor(), Tensor()});
  const auto saved = regrouped_forward(arguments, o);
  EXPECT_LE(difference(o, expected), 1e-12) << what;

  const Tensor grad_o = at::randn_like(o);
  const auto zeros = [&] {
    return std::array{at::zeros_like(arguments.q), at::zeros_like(arguments.k),
                      at::zeros_like(arguments.v)};
  };
  const auto found = zeros(), wanted = zeros();
  branch_backward(arguments, grad_o, wanted[0], wanted[1], wanted[2]);
  regrouped_backward(arguments, saved, grad_o, found[0], found[1], found[2]);
  for (int i = 0; i < 3; ++i)
    EXPECT_LE(difference(found[i], wanted[i]), 1e-11) << what << " gradient " << i;
}

TEST(Regrouped, CompressedIsCausalWithinClasses) {
  at::manual_seed(1);
  for (const Sizes sizes : {Sizes{8, 4, 16, 4, 12}, Sizes{4, 4, 16, 4, 12}, Sizes{12, 4, 16, 4, 12},
                            Sizes{3, 1, 4, 4, 12}})
    for (int64_t length = sizes.compression_block; length <= 72;
         length += 5 * sizes.compression_stride)
      expect_like_chunked(Branch::kCompressed, length, sizes, 2);
}

TEST(Regrouped, SlidingIsCausalWithAWindow) {
  at::manual_seed(2);
  for (const int64_t length : {1, 11, 12, 13, 60})
    expect_like_chunked(Branch::kSliding, length, {8, 4, 16, 4, 12}, 4);
}

TEST(Regrouped, SelectedIsPairsAndOwnBlocks) {
  at::manual_seed(3);
  for (const int64_t length : {1, 63, 64, 65, 80, 81, 150, 192})
    expect_like_chunked(Branch::kSelected, length, {8, 4, 16, 4, 12}, 2);
  expect_like_chunked(Branch::kSelected, 100, {4, 2, 8, 3, 12}, 1);
}

TEST(Regrouped, ServesGpusOnly) {
  const AttentionCase c({1, 64, 4, 2, 8}, {8, 4, 16, 4, 12}, at::kBFloat16);
  EXPECT_FALSE(regrouped_serves({Branch::kSliding, c.tensors.q, *c.tensors.k[2], *c.tensors.v[2],
                                 Tensor(), c.settings.sizes, 1},
                                true));
}

} // namespace
} // namespace nsa::ops
