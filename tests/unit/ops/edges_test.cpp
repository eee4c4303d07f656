// Edge cases: rows that see nothing, exact ties, blocks that many queries share, given indices of
// every kind, and lengths at which one branch equals another.
#include "tests/unit/ops/attention_case.h"

#include <gmock/gmock.h>

namespace nsa::ops {
namespace {

using at::Tensor;
using reference::Shape;

constexpr Sizes kSmall{8, 4, 16, 4, 12};

TEST(Blind, TokensBeforeTheFirstWholeBlockGiveZeroAndNoGradient) {
  at::manual_seed(1);
  // l = 32: the number of tokens that see a block is 0, 0, 1 and 19.
  for (const int64_t length : {1, 31, 32, 50}) {
    const AttentionCase c({2, length, 4, 2, 8}, Sizes{}, at::kFloat, true);
    const BranchResult out = c.run(Branch::kCompressed, std::nullopt);
    const int64_t blind = std::min<int64_t>(length, 31);
    EXPECT_EQ(out.o.narrow(1, 0, blind).abs().max().item<float>(), 0) << length;
    EXPECT_TRUE(out.lse.narrow(1, 0, blind).eq(-INFINITY).all().item<bool>()) << length;
    const auto grads = torch::autograd::grad({out.o.sum()}, {c.tensors.q, *c.tensors.v[0]});
    EXPECT_EQ(grads[0].narrow(1, 0, blind).abs().max().item<float>(), 0) << length;
    EXPECT_TRUE(grads[0].isfinite().all().item<bool>());
    EXPECT_EQ(grads[1].size(1), std::max<int64_t>(0, (length - 16) / 16)) << length;
    // Each later token distributes a weight of one over the values, for every head of a group.
    EXPECT_NEAR(grads[1].sum().item<double>(), double(2 * (length - blind) * 4 * 8), 1e-3)
        << length;
  }
}

// If all keys are equal, all probabilities have equal bits, however the products are tiled.
TEST(Ties, ConstantKeysSelectTheLowestBlocks) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto& [sizes, length] : {std::pair{kSmall, 403}, std::pair{Sizes{}, 1700}}) {
      const AttentionCase c({1, length, 6, 1, 64}, sizes, type);
      const Tensor constant = c.tensors.k[0]->narrow(1, 0, 1).expand_as(*c.tensors.k[0]);
      const auto [scores, indices] = select(c.tensors.q, constant, c.settings, std::nullopt);
      const int n = int(sizes.selected_blocks), block = int(sizes.selection_block);
      for (int t = n * block; t < length; t += 7) {
        const int current = t / block;
        std::vector<int> expected;
        for (int b = 0; b < n - 2; ++b)
          expected.push_back(b);
        expected.insert(expected.end(), {current - 1, current});
        ASSERT_TRUE(at::equal(indices[0][t][0], at::tensor(expected, at::kInt)))
            << toString(type) << " t = " << t << indices[0][t][0] << scores[0][t][0];
      }
    }
}

Tensor given(const AttentionCase& c, const std::function<int(int64_t t, int64_t slot)>& block) {
  const Shape& s = c.shape;
  Tensor indices =
      at::empty({s.batch, s.sequence, s.groups, c.settings.sizes.selected_blocks}, at::kInt);
  for (int64_t t = 0; t < s.sequence; ++t)
    for (int64_t slot = 0; slot < c.settings.sizes.selected_blocks; ++slot)
      indices.select(1, t).select(2, slot).fill_(block(t, slot));
  return indices;
}

void expect_like_oracle(const AttentionCase& c, const std::string& what) {
  for (const Kernels kernels : {Kernels::kAten, Kernels::kReference}) {
    const Tensor out = attention(c.tensors, c.settings, kernels);
    EXPECT_LE(largest_difference(out, to_tensor(c.oracle().o, c.output_shape())), 1e-12)
        << what << ' ' << choice::kernels_name(kernels);
    expect_gradients_like_oracle(c, kernels, 1e-12, what);
  }
}

// A block that many queries share sums many contributions. A block that no query chose has none.
TEST(GivenIndices, OneBlockForAllQueries) {
  at::manual_seed(3);
  AttentionCase c({2, 150, 4, 2, 6}, kSmall, at::kDouble, true);
  c.tensors.indices = given(c, [](int64_t, int64_t slot) { return slot == 0 ? 2 : -1; });
  expect_like_oracle(c, "block 2 for all");
  const Tensor out = attention(c.tensors, c.settings, Kernels::kAten);
  const auto grads = torch::autograd::grad({out.sum()}, {*c.tensors.v[1]});
  EXPECT_EQ(grads[0].narrow(1, 0, 32).abs().max().item<double>(), 0) << "blocks 0 and 1";
  EXPECT_EQ(grads[0].narrow(1, 48, 102).abs().max().item<double>(), 0) << "blocks from 3 on";
  EXPECT_GT(grads[0].narrow(1, 32, 16).abs().min().item<double>(), 0);
}

TEST(GivenIndices, AreASet) {
  at::manual_seed(4);
  AttentionCase c({1, 120, 4, 2, 8}, kSmall, at::kDouble, true);
  const Tensor direction = c.direction();
  const auto run = [&](const Tensor& indices) {
    c.tensors.indices = indices;
    const Tensor out = attention(c.tensors, c.settings, Kernels::kAten);
    auto all = torch::autograd::grad({out}, c.leaves(), {direction});
    all.push_back(out.detach());
    return all;
  };
  const Tensor own = std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
  const auto wanted = run(own);
  Tensor repeated = own.clone(); // empty slots repeat the first block
  repeated = at::where(repeated.lt(0), 0, repeated);
  for (const Tensor& same : {own.flip(3), own.roll(1, 3), repeated}) {
    const auto found = run(same);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(at::equal(found[i], wanted[i])) << i;
  }
  c.tensors.indices = repeated;
  expect_like_oracle(c, "repeated");
}

// The first slots of a row are empty, or all slots are, or only later blocks are listed. There must
// be no NaN.
TEST(GivenIndices, OfQueriesThatSeeLittleOrNothing) {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    AttentionCase c({2, 150, 4, 2, 6}, kSmall, type, true);
    c.tensors.indices = given(c, [](int64_t t, int64_t slot) {
      if (t % 5 == 0) return -1;
      if (t % 5 == 1) return 9; // the last block, which begins at token 144
      if (t % 5 == 2) return 1 << 20;
      return slot < 2 ? -1 : int(slot - 2);
    });
    const BranchResult out = c.run(Branch::kSelected, c.tensors.indices);
    EXPECT_EQ(out.o.select(1, 5).abs().max().item<double>(), 0);
    EXPECT_TRUE(out.lse.select(1, 5).eq(-INFINITY).all().item<bool>());
    EXPECT_TRUE(out.lse.select(1, 141).eq(-INFINITY).all().item<bool>()) << "block 9 is to come";
    EXPECT_TRUE(out.lse.select(1, 146).isfinite().all().item<bool>()) << "block 9 has begun";
    EXPECT_TRUE(out.lse.select(1, 2).eq(-INFINITY).all().item<bool>()) << "beyond the text";
    if (type == at::kDouble) expect_like_oracle(c, "blind queries");
    const auto grads = torch::autograd::grad({out.o.sum()}, {c.tensors.q});
    EXPECT_TRUE(grads[0].isfinite().all().item<bool>());
    EXPECT_EQ(grads[0].select(1, 5).abs().max().item<double>(), 0);
  }
}

// Dense causal attention over a branch's keys. The oracle computes it with a window over all
// tokens.
Tensor causal(const AttentionCase& c, int branch) {
  reference::Inputs in = c.inputs();
  in.k[2] = in.k[branch];
  in.v[2] = in.v[branch];
  Sizes sizes = c.settings.sizes;
  sizes.window = c.shape.sequence;
  return to_tensor(reference::attend(c.shape, sizes, in).branch_o[2], c.output_shape());
}

// With the paper's sizes, every causal block is selected up to t = n * l' - 1 = 1,023.
TEST(SelectedBranch, IsDenseCausalUpToNBlocks) {
  at::manual_seed(6);
  for (const int64_t length : {1, 63, 65, 1000, 1023, 1024}) {
    const AttentionCase c({1, length, 2, 1, 4}, Sizes{}, at::kDouble);
    const Tensor indices =
        std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
    const Tensor dense = causal(c, 1);
    EXPECT_LE(largest_difference(c.run(Branch::kSelected, indices).o, dense), 1e-12) << length;
    EXPECT_LE(largest_difference(c.run(Branch::kSelected, std::nullopt).o, dense), 1e-12) << length;
  }
  const AttentionCase c({1, 1200, 2, 1, 4}, Sizes{}, at::kDouble);
  const Tensor indices =
      std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
  const Tensor out = c.run(Branch::kSelected, indices).o, dense = causal(c, 1);
  EXPECT_LE(largest_difference(out.narrow(1, 0, 1024), dense.narrow(1, 0, 1024)), 1e-12);
  for (const int64_t t : {1088, 1150, 1199}) // 18 blocks or more, of which 16 are selected
    EXPECT_GT(largest_difference(out.select(1, t), dense.select(1, t)), 1e-6) << t;
}

TEST(SlidingBranch, IsDenseCausalWhenTheWindowHoldsTheText) {
  at::manual_seed(7);
  for (const int64_t window : {70, 71, 1 << 30}) {
    Sizes sizes = kSmall;
    sizes.window = window;
    const AttentionCase c({2, 70, 4, 2, 6}, sizes, at::kDouble, true);
    EXPECT_LE(largest_difference(c.run(Branch::kSliding, std::nullopt).o, causal(c, 2)), 1e-12);
    expect_gradients_like_oracle(c, Kernels::kAten, 1e-12, "w = " + std::to_string(window));
  }
  Sizes sizes = kSmall;
  sizes.window = 69; // the last token does not see the first
  const AttentionCase c({2, 70, 4, 2, 6}, sizes, at::kDouble);
  const Tensor out = c.run(Branch::kSliding, std::nullopt).o, dense = causal(c, 2);
  EXPECT_LE(largest_difference(out.narrow(1, 0, 69), dense.narrow(1, 0, 69)), 1e-12);
  EXPECT_GT(largest_difference(out.select(1, 69), dense.select(1, 69)), 1e-6);
}

double root_mean_square(const Tensor& x) {
  return x.detach().to(at::kDouble).pow(2).mean().sqrt().item<double>();
}

// The tolerance of a narrow dtype is the error of a plain evaluation with it.
TEST(Narrow, LosesNoMoreThanAPlainEvaluationInTheSameDtype) {
  at::manual_seed(8);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    AttentionCase c({2, 300, 8, 2, 32}, kSmall, type, true);
    const Tensor direction = c.direction();
    const reference::Outputs oracle = c.oracle();
    const auto exact = c.oracle_gradients(direction);
    const auto [scores, indices] = select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt);
    EXPECT_TRUE(at::equal(indices, indices_tensor(c, oracle))) << "scores are FP32 in any case";
    const auto errors = [&](const Tensor& out) {
      EXPECT_EQ(out.scalar_type(), type);
      const auto grads = torch::autograd::grad({out}, c.leaves(), {direction});
      std::vector<double> all{
          root_mean_square(out.to(at::kDouble) - to_tensor(oracle.o, c.output_shape()))};
      for (size_t i = 0; i < grads.size(); ++i)
        all.push_back(root_mean_square(grads[i].to(at::kDouble) - exact[i]));
      return all;
    };
    const auto ours = errors(attention(c.tensors, c.settings, Kernels::kAten)),
               plain = errors(plain_attention(c, indices));
    for (size_t i = 0; i < ours.size(); ++i) {
      // FP32 is computed in FP32 either way, so only the order of additions differs.
      EXPECT_LE(ours[i], (type == at::kFloat ? 1.5 : 1.0) * plain[i]) << toString(type) << ' ' << i;
      EXPECT_GT(plain[i], 0);
    }
  }
}

TEST(Plain, IsTheOracleInFp64) { // the judge must be tested itself
  at::manual_seed(9);
  AttentionCase c({2, 130, 4, 2, 6}, kSmall, at::kDouble, true);
  const Tensor indices = indices_tensor(c, c.oracle());
  const Tensor out = plain_attention(c, indices), direction = c.direction();
  EXPECT_LE(largest_difference(out, to_tensor(c.oracle().o, c.output_shape())), 1e-12);
  const auto found = torch::autograd::grad({out}, c.leaves(), {direction});
  const auto wanted = c.oracle_gradients(direction);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_LE(largest_difference(found[i], wanted[i]), 1e-11) << i;
}

} // namespace
} // namespace nsa::ops
