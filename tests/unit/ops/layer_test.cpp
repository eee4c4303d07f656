// The operations around attention: each with its own autograd against the same written in ATen
// operations with ATen's autograd.
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/layer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace nsa::ops {
namespace {

using at::Tensor;

Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).set_requires_grad(true);
}
void expect_equal(const std::vector<Tensor>& found, const std::vector<Tensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].sizes(), wanted[i].sizes()) << i;
    EXPECT_TRUE(at::allclose(found[i], wanted[i], 1e-10, 1e-12)) << "tensor " << i;
  }
}

TEST(AddRmsNorm, EqualsSumAndNorm) {
  at::manual_seed(1);
  const Tensor x = leaf({2, 5, 16}), addend = leaf({2, 5, 16}), gain = leaf({16});
  const Tensor up_sum = at::randn({2, 5, 16}, at::kDouble), up = at::randn_like(up_sum);
  const auto run = [&](bool fused) {
    const NormedSum out = add_rms_norm(x, addend, gain, 1e-6, fused);
    auto all = torch::autograd::grad({out.sum, out.normed}, {x, addend, gain}, {up_sum, up});
    all.push_back(out.sum.detach());
    all.push_back(out.normed.detach());
    return all;
  };
  expect_equal(run(true), run(false));
}

TEST(AddRmsNorm, PassesOnWhatOneOutputBrings) {
  at::manual_seed(2);
  const Tensor x = leaf({3, 16}), addend = leaf({3, 16}), gain = leaf({16});
  const Tensor up = at::randn({3, 16}, at::kDouble);
  for (const bool normed : {true, false}) {
    const auto run = [&](bool fused) {
      const NormedSum out = add_rms_norm(x, addend, gain, 1e-6, fused);
      return torch::autograd::grad({normed ? out.normed : out.sum}, {x, addend}, {up});
    };
    expect_equal(run(true), run(false));
  }
}

TEST(AddRmsNorm, WithoutAddendTheSumIsTheInput) {
  at::manual_seed(3);
  const Tensor x = leaf({4, 16}), gain = leaf({16}), up = at::randn({4, 16}, at::kDouble);
  const auto run = [&](bool fused) {
    const NormedSum out = add_rms_norm(x, std::nullopt, gain, 1e-6, fused);
    EXPECT_TRUE(out.sum.is_same(x));
    // The stream goes on beside the norm.
    return torch::autograd::grad({out.normed + 2 * out.sum}, {x, gain}, {up});
  };
  expect_equal(run(true), run(false));
}

TEST(AddRmsNorm, RoundsLikeTheOperationsItReplaces) {
  at::manual_seed(4);
  const Tensor x = at::randn({50, 64}).to(at::kBFloat16),
               addend = at::randn({50, 64}).to(x.dtype());
  const Tensor gain = at::rand({64}).to(x.dtype());
  const NormedSum fused = add_rms_norm(x, addend, gain, 1e-6, true);
  EXPECT_TRUE(at::equal(fused.sum, x + addend));
  const Tensor wide = at::rms_norm(fused.sum.to(at::kDouble), {64}, gain.to(at::kDouble), 1e-6);
  EXPECT_LE((fused.normed.to(at::kDouble) - wide).norm().item<double>(),
            0.003 * wide.norm().item<double>());
}

struct Shape {
  HeadCut cut;
  int64_t sets;
  bool table_per_token;
};
TEST(SplitHeads, EqualsSplitRotateAndMean) {
  at::manual_seed(5);
  for (const Shape& shape :
       {Shape{{6, 2, 8, 3, true}, 6, false}, Shape{{6, 2, 8, 2, true}, 6, true},
        Shape{{4, 2, 8, 1, false}, 2, false}, Shape{{4, 4, 8, 0, true}, 1, false}}) {
    const HeadCut& cut = shape.cut;
    const int64_t heads = cut.heads + shape.sets * cut.groups;
    const Tensor joined = leaf({2, 7, heads * cut.head_dimension});
    const Tensor angle =
        at::randn({shape.table_per_token ? 14 : 7, cut.head_dimension / 2}, at::kDouble);
    const auto run = [&](bool fused) {
      const HeadSets out = split_heads(joined, angle.cos(), angle.sin(), cut, fused);
      std::vector<Tensor> all{out.q}, ups;
      all.insert(all.end(), out.sets.begin(), out.sets.end());
      if (cut.mean) all.push_back(out.mean);
      EXPECT_EQ(out.mean.defined(), cut.mean);
      for (size_t i = 0; i < all.size(); ++i)
        ups.push_back((at::arange(all[i].numel(), at::kDouble) * (0.01 + double(i)))
                          .sin()
                          .view(all[i].sizes()));
      std::vector<Tensor> results = torch::autograd::grad(all, {joined}, ups);
      for (const Tensor& t : all)
        results.push_back(t.detach().contiguous());
      return results;
    };
    expect_equal(run(true), run(false));
  }
}

TEST(SplitHeads, LeavesSetsWithoutGradientAtZero) {
  at::manual_seed(6);
  const Tensor joined = leaf({1, 3, 8 * 8}), angle = at::randn({3, 4}, at::kDouble);
  const HeadSets out = split_heads(joined, angle.cos(), angle.sin(), {4, 2, 8, 1, true}, true);
  const auto grads = torch::autograd::grad({out.sets[1].sum()}, {joined});
  const Tensor by_head = grads[0].unflatten(-1, {8, 8});
  EXPECT_EQ(by_head.narrow(2, 0, 6).abs().max().item<double>(), 0);
  EXPECT_EQ(by_head.narrow(2, 6, 2).min().item<double>(), 1);
}

TEST(CrossEntropy, LeavesItsGradientInTheLogits) {
  at::manual_seed(7);
  Tensor logits = leaf({9, 24});
  const Tensor labels = at::randint(24, {9}, at::kLong), share = at::rand({9}, at::kDouble);
  const Tensor wanted =
      -at::log_softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1) * share;
  const auto gradient = torch::autograd::grad({wanted.sum()}, {logits});
  for (const bool fused : {false, true}) {
    const Tensor work = logits.detach().clone();
    expect_equal({cross_entropy_(work, labels, share, false, fused)}, {wanted.detach()});
    EXPECT_TRUE(at::equal(work, logits));
    expect_equal({cross_entropy_(work, labels, share, true, fused), work},
                 {wanted.detach(), gradient[0]});
  }
}

TEST(LayerOperations, RefuseWhatDoesNotFit) {
  const Tensor x = at::zeros({2, 8}), gain = at::ones({8});
  EXPECT_THROW(add_rms_norm(x, std::nullopt, at::ones({7}), 1e-6, true), c10::Error);
  EXPECT_THROW(add_rms_norm(x, at::zeros({2, 4}), gain, 1e-6, true), c10::Error);
  EXPECT_THROW(add_rms_norm(x, std::nullopt, gain.to(at::kDouble), 1e-6, true), c10::Error);
  const Tensor table = at::ones({3, 4});
  EXPECT_THROW(split_heads(at::zeros({1, 3, 60}), table, table, {4, 2, 8, 1, true}, true),
               c10::Error);
}

} // namespace
} // namespace nsa::ops
