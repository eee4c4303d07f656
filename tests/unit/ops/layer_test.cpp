// The operations around attention. Each has its own autograd, and is compared with the same
// operation in ATen with ATen's autograd.
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/embedding.h"
#include "nsa_model/ops/layer.h"
#include "nsa_model/ops/learned_compression.h"
#include "nsa_model/ops/product.h"

#include <array>
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
    // The residual stream continues beside the norm.
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

TEST(Products, LinearAndMlpEqualTheirParts) {
  at::manual_seed(9);
  const Tensor x = leaf({2, 5, 8}), fc1 = leaf({12, 8}), fc2 = leaf({6, 12});
  const Tensor up = at::randn({2, 5, 12}, at::kDouble), up_mlp = at::randn({2, 5, 6}, at::kDouble);
  const auto run = [&](bool fused) {
    const Tensor out = linear(x, fc1, fused), after = mlp(x, fc1, fc2, fused);
    auto all = torch::autograd::grad({out}, {x, fc1}, {up});
    for (const Tensor& grad : torch::autograd::grad({after}, {x, fc1, fc2}, {up_mlp}))
      all.push_back(grad);
    all.push_back(out.detach());
    all.push_back(after.detach());
    return all;
  };
  expect_equal(run(true), run(false));
}

TEST(Products, JoinedLinearTakesWeightsSideBySideOrApart) {
  at::manual_seed(12);
  const Tensor x = leaf({2, 5, 8}), up = at::randn({2, 5, 9}, at::kDouble);
  const std::vector<Tensor> apart{leaf({4, 8}), leaf({2, 8}), leaf({3, 8})};
  std::vector<Tensor> together;
  const Tensor buffer = at::zeros({4 + 9 * 8}, at::kDouble);
  int64_t begin = 4;
  for (const Tensor& weight : apart) {
    together.push_back(buffer.narrow(0, begin, weight.numel()).view(weight.sizes()));
    together.back().copy_(weight.detach());
    together.back() = together.back().detach().set_requires_grad(true);
    begin += weight.numel();
  }
  const auto run = [&](const std::vector<Tensor>& weights, bool fused) {
    const Tensor out = joined_linear(x, weights, fused);
    auto all = torch::autograd::grad({out}, {x, weights[0], weights[1], weights[2]}, {up});
    all.push_back(out.detach());
    return all;
  };
  const std::vector<Tensor> wanted = run(apart, false);
  expect_equal(run(apart, true), wanted);
  expect_equal(run(together, true), wanted);
  const Tensor before = together[1];
  together[1] = apart[1].detach().clone().set_requires_grad(true); // no longer side by side
  expect_equal(run(together, true), wanted);
  together = {together[0], before, together[2]};
  std::swap(together[0], together[1]); // side by side, but not in this order
  EXPECT_TRUE(at::allclose(joined_linear(x, together, true).narrow(2, 2, 4),
                           wanted.back().narrow(2, 0, 4), 1e-10, 1e-12));
}

TEST(Products, WriteOrAddInTheTypeOfTheResult) {
  at::manual_seed(10);
  const Tensor a = at::randn({7, 5}).to(at::kBFloat16), b = at::randn({7, 4}).to(at::kBFloat16);
  const Tensor wanted = at::mm(a.t(), b).to(at::kFloat);
  const Tensor sum = at::full({5, 4}, NAN); // old contents must not count
  product_(sum, a, b, {.a = true}, false);
  EXPECT_TRUE(at::equal(sum, wanted));
  product_(sum, a, b, {.a = true}, true);
  EXPECT_TRUE(at::equal(sum, wanted * 2));
  const Tensor narrow = at::empty({5, 4}, at::kBFloat16);
  product_(narrow, a.t().contiguous(), b.t().contiguous(), {.b = true}, false);
  EXPECT_TRUE(at::allclose(narrow.to(at::kFloat), wanted, 0.01, 0.01));
}

TEST(GroupGates, EqualProductsSiluAndSoftmax) {
  at::manual_seed(8);
  for (const int64_t branches : {3, 2}) {
    const Tensor mean = leaf({2, 5, 2, 16}), fc1 = leaf({8, 16}), fc2 = leaf({branches, 8});
    const Tensor up = at::randn({2, 5, 6, branches}, at::kDouble);
    const auto run = [&](bool fused) {
      const Tensor gates = group_gates(mean, fc1, fc2, 0.7, 6, fused);
      auto all = torch::autograd::grad({gates}, {mean, fc1, fc2}, {up});
      all.push_back(gates.detach());
      return all;
    };
    const auto fused = run(true);
    expect_equal(fused, run(false));
    const Tensor gates = fused.back();
    expect_equal({gates.sum(-1)}, {at::ones({2, 5, 6}, at::kDouble)});
    // Heads of the same group have equal gates.
    expect_equal({gates.narrow(2, 3, 1)}, {gates.narrow(2, 5, 1)});
    EXPECT_GT((gates.narrow(2, 2, 1) - gates.narrow(2, 3, 1)).abs().min().item<double>(), 0);
  }
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

// A table is used for a lookup and in a product. Its joined gradient is the sum of both.
TEST(Embedding, JoinsBothGradientsOfATiedTable) {
  at::manual_seed(8);
  const Tensor table = leaf({11, 6});
  const Tensor ids = at::tensor({3, 3, 10, 0, 3, 7, 7, 0}, at::kLong).view({2, 4});
  const Tensor up = at::randn({2, 4, 6}, at::kDouble), other = at::randn({11, 6}, at::kDouble);
  const auto tied = c10::make_intrusive<TiedGradient>();
  const Tensor looked_up = embedding(table, ids, tied);
  EXPECT_TRUE(at::equal(looked_up, at::embedding(table, ids)));
  const Tensor wanted = torch::autograd::grad({at::embedding(table, ids)}, {table}, {up}).at(0);
  const auto found = [&] {
    return torch::autograd::grad({looked_up}, {table}, {up}, /*retain_graph=*/true).at(0);
  };
  expect_equal({found()}, {wanted}); // the other use has left no gradient
  tied->gradient = other;
  tied->scale = at::full({}, 0.25, at::kDouble);
  expect_equal({found()}, {wanted + 0.25 * other});
  EXPECT_FALSE(tied->gradient.defined()) << "used once";
  expect_equal({found()}, {wanted});
  // Rows that the other use's gradient lacks. The last two belong to no row of the table.
  const Tensor rows = at::randn({5, 6}, at::kDouble), factors = at::randn({5}, at::kDouble);
  tied->gradient = other;
  tied->scale = at::full({}, 0.25, at::kDouble);
  tied->missing = {rows, at::tensor({10, 3, 10, -1, 11}, at::kLong), factors};
  const Tensor lacking = at::zeros_like(other), row = rows * factors.unsqueeze(1);
  lacking[3] = row[1];
  lacking[10] = row[0] + row[2];
  expect_equal({found()}, {wanted + 0.25 * (other + lacking)});
  expect_equal({found()}, {wanted});
  // Many small gradients of one row are added before they are rounded.
  const Tensor small = at::full({300, 8}, 0x1p-9, at::kBFloat16);
  const Tensor one = at::ones({2, 8});
  const Tensor sum =
      composed::embedding_gradient(small, at::ones({300}, at::kLong), 2, one, at::full({}, 1.0));
  EXPECT_TRUE(sum[0].eq(1.0).all().item<bool>());
  EXPECT_TRUE(at::equal(sum[1], at::full({8}, 1.0 + 300 * 0x1p-9).to(at::kBFloat16)));
  EXPECT_THROW(
      composed::embedding_gradient(small, at::ones({299}, at::kLong), 2, one, at::full({}, 1.0)),
      c10::Error);
  EXPECT_THROW(composed::embedding_gradient(small, at::ones({300}, at::kLong), 2, one, {}),
               c10::Error);
  const auto with_others = [&](const OptionalTensor& base, const Tensor& rows, const Tensor& ids) {
    return composed::embedding_gradient(small, at::ones({300}, at::kLong), 2, base,
                                        base ? OptionalTensor(at::full({}, 1.0)) : std::nullopt,
                                        rows, ids, at::ones({3}));
  };
  const Tensor three = at::zeros({3}, at::kLong), others = small.narrow(0, 0, 3);
  EXPECT_NO_THROW(with_others(one, others, three));
  EXPECT_THROW(with_others({}, others, three), c10::Error) << "no gradient of the other use";
  EXPECT_THROW(with_others(one, others.narrow(0, 0, 2), three), c10::Error);
  EXPECT_THROW(with_others(one, others.narrow(1, 0, 4), three), c10::Error);
  EXPECT_THROW(with_others(one, others, three.narrow(0, 0, 2)), c10::Error);
}

// A second run that begins with the sum has the bits of the first. In BF16, a gradient added to
// another one would be rounded twice.
TEST(RmsNorm, OfASumHasTheBitsOfXAndAddend) {
  at::manual_seed(9);
  const auto leaf_of = [](const Tensor& x) { return x.detach().clone().requires_grad_(); };
  const auto bf16 = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); };
  const Tensor x = leaf_of(bf16({5, 32})), addend = leaf_of(bf16({5, 32})),
               gain = leaf_of(bf16({32})), up = bf16({5, 32}), up_sum = bf16({5, 32});
  const NormedSum first = add_rms_norm(x, addend, gain, 1e-6, true);
  const Tensor sum = leaf_of(first.sum);
  const NormedSum second = rms_norm_of_sum(sum, gain, 1e-6);
  EXPECT_TRUE(at::equal(second.sum, first.sum));
  EXPECT_TRUE(at::equal(second.normed, first.normed));
  const auto wanted =
      torch::autograd::grad({first.normed, first.sum}, {x, addend, gain}, {up, up_sum});
  const auto found = torch::autograd::grad({second.normed, second.sum}, {sum, gain}, {up, up_sum});
  EXPECT_TRUE(at::equal(found[0], wanted[0]) && at::equal(found[0], wanted[1]));
  EXPECT_TRUE(at::equal(found[1], wanted[2]));
}

// From 65,536 rows on silu(x) is not kept. It is computed again, in parts of that many rows.
TEST(Mlp, OfManyRowsHasTheSameGradients) {
  at::manual_seed(10);
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
    const auto some = [&](at::IntArrayRef sizes) {
      return at::randn(sizes).to(at::kBFloat16).to(type).requires_grad_();
    };
    const Tensor fc1 = some({6, 4}), fc2 = some({4, 6});
    for (const int64_t rows : {65535, 65536, 140000}) {
      const Tensor x = some({rows, 4}), up = some({rows, 4}).detach();
      const auto wide = [](const Tensor& t) { return t.detach().to(at::kDouble).requires_grad_(); };
      const Tensor x64 = wide(x), fc1_64 = wide(fc1), fc2_64 = wide(fc2);
      const auto wanted = torch::autograd::grad({mlp(x64, fc1_64, fc2_64, false)},
                                                {x64, fc1_64, fc2_64}, {up.to(at::kDouble)});
      const auto found = torch::autograd::grad({mlp(x, fc1, fc2, true)}, {x, fc1, fc2}, {up});
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), type);
        const double error =
            ((found[i].to(at::kDouble) - wanted[i]).norm() / wanted[i].norm()).item<double>();
        EXPECT_LE(error, type == at::kDouble ? 1e-12 : 0.02) << rows << " rows, " << i;
      }
    }
  }
}

TEST(LayerOperations, RefuseWhatDoesNotFit) {
  const Tensor x = at::zeros({2, 8}), gain = at::ones({8});
  EXPECT_THROW(add_rms_norm(x, std::nullopt, at::ones({7}), 1e-6, true), c10::Error);
  EXPECT_THROW(add_rms_norm(x, at::zeros({2, 4}), gain, 1e-6, true), c10::Error);
  EXPECT_THROW(add_rms_norm(x, std::nullopt, gain.to(at::kDouble), 1e-6, true), c10::Error);
  const Tensor mean = at::zeros({1, 2, 2, 8}), fc1 = at::zeros({4, 8}), fc2 = at::zeros({3, 4});
  EXPECT_THROW(group_gates(mean, fc1, fc2, 1.0, 5, true), c10::Error);
  EXPECT_THROW(group_gates(mean, fc2, fc2, 1.0, 4, true), c10::Error);
  EXPECT_THROW(linear(x, at::zeros({3, 7}), true), c10::Error);
  EXPECT_THROW(mlp(x, at::zeros({16, 8}), at::zeros({8, 15}), true), c10::Error);
  // Called as an operator, for example from Python.
  EXPECT_THROW(composed::silu_product(x, at::zeros({16, 7})), c10::Error);
  EXPECT_THROW(composed::silu_product(x, at::zeros({16, 8}, at::kDouble)), c10::Error);
  EXPECT_THROW(composed::silu_product(at::zeros({1, 2, 8}), at::zeros({16, 8})), c10::Error);
  const Tensor weight = at::zeros({8, 16}), before = at::zeros({2, 16});
  EXPECT_EQ(composed::silu_product_backward(x, weight, before).sizes(), before.sizes());
  EXPECT_THROW(composed::silu_product_backward(x, weight, at::zeros({3, 16})), c10::Error);
  EXPECT_THROW(composed::silu_product_backward_with_after(x, weight, at::zeros({3, 16})),
               c10::Error);
  EXPECT_THROW(composed::silu_product_backward(x, weight, at::zeros({2, 15})), c10::Error);
  EXPECT_THROW(composed::silu_product_backward(x, weight.t(), before), c10::Error);
  EXPECT_THROW(composed::silu_product_backward(x, weight, before.to(at::kDouble)), c10::Error);
  EXPECT_THROW(group_gates(mean, fc1, fc2.to(at::kDouble), 1.0, 4, true), c10::Error);
  const Tensor table = at::ones({3, 4});
  EXPECT_THROW(split_heads(at::zeros({1, 3, 60}), table, table, {4, 2, 8, 1, true}, true),
               c10::Error);
}

// The registered operations, as Python calls them. They refuse arguments that a CUDA version would
// trust. Each argument of `right` is changed once.
TEST(LayerOperations, RefuseWhatWouldBeReadOutOfBounds) {
  namespace ops = composed;
  const Tensor x = at::zeros({2, 3, 8}), gain = at::ones({8}), inverse = at::ones({6});
  const Tensor on_meta = at::zeros({2, 3, 8}, at::kMeta);
  EXPECT_NO_THROW(ops::add_rms_norm_backward(x, x, x, inverse, gain));
  for (const Tensor& wrong : {x.narrow(0, 0, 1), x.to(at::kBFloat16), on_meta}) {
    EXPECT_THROW(ops::add_rms_norm_backward(wrong, x, x, inverse, gain), c10::Error);
    EXPECT_THROW(ops::add_rms_norm_backward(x, wrong, x, inverse, gain), c10::Error);
    EXPECT_THROW(ops::add_rms_norm(x, wrong, gain, 1e-6), c10::Error);
  }
  for (const Tensor& wrong : {inverse.narrow(0, 0, 5), inverse.to(at::kDouble), x})
    EXPECT_THROW(ops::add_rms_norm_backward(x, x, x, wrong, gain), c10::Error);
  for (const Tensor& wrong : {gain.narrow(0, 0, 7), gain.to(at::kHalf), x})
    EXPECT_THROW(ops::add_rms_norm_backward(x, x, x, inverse, wrong), c10::Error);

  // 4 heads, 2 groups of 8 dimensions, and three sets, of which two are rotated.
  const Tensor joined = at::zeros({2, 3, 10 * 8}), table = at::ones({3, 4});
  const auto split = [&](const Tensor& all, const Tensor& cos, const Tensor& sin, int64_t rotated) {
    return ops::split_heads(all, cos, sin, 4, 2, 8, rotated, true);
  };
  const std::vector<Tensor> parts = split(joined, table, table, 2);
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_NO_THROW(split(joined, table.repeat({2, 1}), table.repeat({2, 1}), 2));
  for (const Tensor& wrong :
       {table.narrow(0, 0, 2), table.narrow(1, 0, 3), table.to(at::kDouble), table.to(at::kMeta)}) {
    EXPECT_THROW(split(joined, wrong, table, 2), c10::Error);
    EXPECT_THROW(split(joined, table, wrong, 2), c10::Error);
    EXPECT_THROW(ops::split_heads_backward(parts, wrong, table, 2, true), c10::Error);
  }
  EXPECT_THROW(split(joined, table, table, 4), c10::Error);
  EXPECT_THROW(split(joined.narrow(2, 0, 72), table, table, 2), c10::Error);
  EXPECT_NO_THROW(ops::split_heads_backward(parts, table, table, 2, true));
  EXPECT_THROW(ops::split_heads_backward(parts, table, table, 4, true), c10::Error);
  EXPECT_THROW(ops::split_heads_backward({}, table, table, 0, false), c10::Error);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<Tensor> shorter = parts, other = parts;
    shorter[i] = parts[i].narrow(1, 0, 2);
    other[i] = parts[i].to(at::kBFloat16);
    EXPECT_THROW(ops::split_heads_backward(shorter, table, table, 2, true), c10::Error) << i;
    EXPECT_THROW(ops::split_heads_backward(other, table, table, 2, true), c10::Error) << i;
  }

  const Tensor mean = at::zeros({2, 3, 2, 8}), fc1 = at::zeros({4, 8}), fc2 = at::zeros({3, 4});
  const Tensor gates = ops::group_gates(mean, fc1, fc2, 1.0, 4);
  EXPECT_NO_THROW(ops::group_gates_backward(gates, gates, mean, fc1, fc2, 1.0));
  for (const Tensor& wrong : {gates.narrow(1, 0, 2), gates.narrow(2, 0, 3), gates.narrow(3, 0, 2),
                              gates.to(at::kDouble), gates.to(at::kMeta)}) {
    EXPECT_THROW(ops::group_gates_backward(wrong, gates, mean, fc1, fc2, 1.0), c10::Error);
    EXPECT_THROW(ops::group_gates_backward(gates, wrong, mean, fc1, fc2, 1.0), c10::Error);
  }
  EXPECT_THROW(ops::group_gates_backward(gates, gates, mean.narrow(1, 0, 2), fc1, fc2, 1.0),
               c10::Error);
  EXPECT_THROW(ops::group_gates(mean, fc1, fc2.narrow(1, 0, 3), 1.0, 4), c10::Error);
  EXPECT_THROW(ops::group_gates(mean, fc1.to(at::kMeta), fc2, 1.0, 4), c10::Error);

  const Tensor logits = at::zeros({5, 8}), labels = at::zeros({5}, at::kLong), share = at::ones(5);
  EXPECT_NO_THROW(ops::cross_entropy_(logits, labels, share, true));
  for (const Tensor& wrong : {labels.narrow(0, 0, 4), labels.to(at::kInt), labels.to(at::kMeta)})
    EXPECT_THROW(ops::cross_entropy_(logits, wrong, share, true), c10::Error);
  for (const Tensor& wrong : {share.narrow(0, 0, 4), share.to(at::kDouble), share.to(at::kMeta)})
    EXPECT_THROW(ops::cross_entropy_(logits, labels, wrong, true), c10::Error);
}

// The same with ATen's operations and their own autograd, as the model composes it for documents.
Tensor compressed_by_aten(const Tensor& x, const CompressionWeights& weights, int64_t stride) {
  Sizes sizes;
  sizes.compression_block = weights.position.size(0);
  sizes.compression_stride = stride;
  const Tensor blocks =
      (compression_windows(x, sizes, std::nullopt) + weights.position.unsqueeze(1))
          .transpose(2, 3)
          .flatten(3);
  return at::linear(at::silu(at::linear(blocks, weights.fc1)), weights.fc2);
}

TEST(LearnedCompression, EqualsBlocksThroughTwoProducts) {
  at::manual_seed(9);
  // Blocks of three strides; last tokens without a block; one block.
  for (const auto& [tokens, block, stride] :
       {std::array<int64_t, 3>{41, 12, 4}, std::array<int64_t, 3>{41, 8, 4},
        std::array<int64_t, 3>{8, 8, 4}}) {
    const auto weights = [block = block] {
      return CompressionWeights{leaf({block, 6}), leaf({10, block * 6}), leaf({6, 10})};
    };
    const Tensor k = leaf({2, tokens, 3, 6}), v = leaf({2, tokens, 3, 6});
    const CompressionWeights of_k = weights(), of_v = weights();
    const int64_t count = (tokens - block) / stride + 1;
    const Tensor angle = at::randn({count, 3}, at::kDouble), cos = angle.cos(), sin = angle.sin();
    const std::vector<Tensor> inputs{k, of_k.position, of_k.fc1, of_k.fc2,
                                     v, of_v.position, of_v.fc1, of_v.fc2};
    const auto all = [&](const Tensor& k_out, const Tensor& v_out) {
      auto found = torch::autograd::grad(
          {k_out, v_out}, inputs,
          {at::cos(at::arange(k_out.numel(), at::kDouble)).view(k_out.sizes()),
           at::sin(at::arange(v_out.numel(), at::kDouble)).view(v_out.sizes())});
      found.push_back(k_out.detach());
      found.push_back(v_out.detach());
      return found;
    };
    const CompressedTokens out = learned_compression(k, v, of_k, of_v, cos, sin, stride);
    expect_equal(all(out.k, out.v), all(rope(compressed_by_aten(k, of_k, stride), cos, sin),
                                        compressed_by_aten(v, of_v, stride)));
  }
}

TEST(LearnedCompression, GivesNothingForASequenceWithoutAWholeBlock) {
  const Tensor k = leaf({2, 7, 3, 6}), v = leaf({2, 7, 3, 6}),
               none = at::zeros({0, 3}, at::kDouble);
  const CompressionWeights weights{leaf({8, 6}), leaf({10, 48}), leaf({6, 10})};
  const CompressedTokens out = learned_compression(k, v, weights, weights, none, none, 4);
  EXPECT_EQ(out.k.sizes(), at::IntArrayRef({2, 0, 3, 6}));
  const auto gradients = torch::autograd::grad({out.k, out.v}, {k, weights.fc1},
                                               {at::zeros_like(out.k), at::zeros_like(out.v)});
  expect_equal({gradients[0], gradients[1]}, {at::zeros_like(k), at::zeros_like(weights.fc1)});
}

TEST(LearnedCompression, RefusesWhatDoesNotFit) {
  const auto tokens = [](int64_t width) { return at::zeros({1, 16, 2, width}, at::kDouble); };
  const CompressionWeights good{at::zeros({8, 6}, at::kDouble), at::zeros({10, 48}, at::kDouble),
                                at::zeros({6, 10}, at::kDouble)};
  const Tensor table = at::zeros({3, 3}, at::kDouble);
  const auto call = [&](const Tensor& k, const CompressionWeights& of_k, int64_t stride) {
    return learned_compression(k, k, of_k, good, table, table, stride);
  };
  EXPECT_EQ(call(tokens(6), good, 4).k.size(1), 3);
  EXPECT_THROW(call(tokens(8), good, 4), c10::Error);
  EXPECT_THROW(call(tokens(6), good, 3), c10::Error) << "a block is whole strides";
  EXPECT_THROW(call(tokens(6), good, 2), c10::Error) << "five compressed tokens need five angles";
  EXPECT_THROW(call(tokens(6), {good.position, good.fc1, good.fc1}, 4), c10::Error);
}

} // namespace
} // namespace nsa::ops
