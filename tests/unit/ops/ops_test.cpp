// Compares the operators with the float64 oracle and with each other. FP64 runs show that the
// semantics equal those of the oracle, except for rounding. FP32 and BF16 runs show that no further
// precision is lost.
#include "tests/unit/ops/attention_case.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numeric>

namespace nsa::ops {
namespace {

using at::Tensor;
using reference::Shape;

constexpr Sizes kSmall{8, 4, 16, 4, 12}; // selects from 65 tokens on

// With tiny tensors, two threads would wait for each other longer than they work.
class OneThread : public testing::Environment {
public:
  void SetUp() override { at::set_num_threads(1); }
};
const auto* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

void expect_forward_like_oracle(const AttentionCase& c, double tolerance, const std::string& what) {
  const reference::Outputs oracle = c.oracle();
  const Tensor chosen = indices_tensor(c, oracle);
  const std::vector<int64_t> shape = c.output_shape();
  const std::vector<int64_t> lse_shape(shape.begin(), shape.end() - 1);
  const auto [scores, indices] =
      select(c.tensors.q, *c.tensors.k[0], c.settings, c.tensors.document_start);
  EXPECT_LE(largest_difference(scores, to_tensor(oracle.scores, scores.sizes())),
            std::max(tolerance, 1e-6))
      << what;
  EXPECT_TRUE(at::equal(indices, chosen)) << what;
  for (const Branch branch : {Branch::kCompressed, Branch::kSelected, Branch::kSliding}) {
    const BranchResult out = c.run(branch, chosen);
    EXPECT_LE(largest_difference(out.o, to_tensor(oracle.branch_o[int(branch)], shape)), tolerance)
        << what << " branch " << int(branch);
    EXPECT_LE(largest_difference(out.lse, to_tensor(oracle.branch_lse[int(branch)], lse_shape)),
              tolerance)
        << what << " branch " << int(branch);
  }
  EXPECT_LE(largest_difference(attention(c.tensors, c.settings, Kernels::kAten),
                               to_tensor(oracle.o, shape)),
            3 * tolerance)
      << what;
}

TEST(Forward, EveryShortLengthLikeTheOracle) {
  at::manual_seed(1);
  for (int64_t length = 1; length <= 90; length = length < 20 ? length + 1 : length + 7)
    expect_forward_like_oracle(AttentionCase({2, length, 4, 2, 6}, kSmall, at::kDouble), 1e-12,
                               "S = " + std::to_string(length));
}

TEST(Forward, SizesOfThePaperAtTheirEdges) {
  at::manual_seed(2);
  for (const int64_t length :
       {1, 30, 31, 32, 33, 63, 64, 65, 513, 1023, 1024, 1025, 1300, 4095, 4096})
    expect_forward_like_oracle(AttentionCase({1, length, 2, 1, 4}, Sizes{}, at::kDouble), 1e-12,
                               "S = " + std::to_string(length));
}

TEST(Forward, OtherRatiosOfBlocksAndStrides) {
  at::manual_seed(3);
  for (const Sizes sizes :
       {Sizes{4, 4, 4, 3, 5}, Sizes{12, 4, 8, 5, 1}, Sizes{6, 2, 2, 3, 200}, Sizes{16, 4, 8, 3, 7}})
    expect_forward_like_oracle(AttentionCase({1, 73, 6, 2, 4}, sizes, at::kDouble), 1e-12,
                               "l = " + std::to_string(sizes.compression_block));
}

TEST(Forward, LongerThanAChunk) {
  at::manual_seed(4);
  expect_forward_like_oracle(AttentionCase({3, 700, 12, 2, 8}, kSmall, at::kDouble), 1e-12,
                             "S = 700");
}

TEST(Forward, Fp32LosesNoMoreThanRounding) {
  at::manual_seed(5);
  expect_forward_like_oracle(AttentionCase({2, 300, 4, 2, 32}, kSmall, at::kFloat), 5e-6, "FP32");
}

TEST(Forward, DocumentsLikeTheOracleAndLikeEachAlone) {
  at::manual_seed(7);
  AttentionCase c({2, 140, 4, 2, 6}, kSmall, at::kDouble);
  const std::vector<int64_t> lengths = {1, 9, 100, 7, 23};
  c.set_documents(lengths);
  expect_forward_like_oracle(c, 1e-12, "documents");
  const Tensor whole = attention(c.tensors, c.settings, Kernels::kAten);
  int64_t begin = 0, compressed = 0;
  for (const int64_t length : lengths) {
    const int64_t count = reference::compressed_count(length, kSmall);
    AttentionInputs alone;
    alone.q = c.tensors.q.narrow(1, begin, length);
    alone.gates = c.tensors.gates.narrow(1, begin, length);
    for (int branch = 0; branch < 3; ++branch) {
      const auto cut = [&](const Tensor& x) {
        return branch == 0 ? x.narrow(1, compressed, count) : x.narrow(1, begin, length);
      };
      alone.k[branch] = cut(*c.tensors.k[branch]);
      alone.v[branch] = cut(*c.tensors.v[branch]);
    }
    EXPECT_LE(largest_difference(attention(alone, c.settings, Kernels::kAten),
                                 whole.narrow(1, begin, length)),
              1e-14);
    begin += length;
    compressed += count;
  }
}

TEST(Semantics, ShortTextsSelectEverythingAndWideWindowsSeeEverything) {
  at::manual_seed(8);
  const AttentionCase c({2, 64, 4, 2, 8}, Sizes{8, 4, 16, 4, 64}, at::kDouble);
  const Tensor indices =
      std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
  for (const int branch : {1, 2}) {
    const auto expand = [&](const Tensor& x) { return x.repeat_interleave(2, 2).transpose(1, 2); };
    const Tensor scores =
        at::matmul(c.tensors.q.transpose(1, 2), expand(*c.tensors.k[branch]).transpose(2, 3)) /
        std::sqrt(8.0);
    const Tensor future = at::ones({64, 64}, at::kBool).triu(1);
    const Tensor dense = at::matmul(at::softmax(scores.masked_fill(future, -INFINITY), -1),
                                    expand(*c.tensors.v[branch]));
    EXPECT_LE(largest_difference(c.run(Branch(branch), indices).o, dense.transpose(1, 2)), 1e-12);
    if (branch == 1) { // the same without given indices
      EXPECT_LE(largest_difference(c.run(Branch(branch), std::nullopt).o, dense.transpose(1, 2)),
                1e-12);
    }
  }
}

TEST(Semantics, FutureTokensChangeNoPastBit) {
  at::manual_seed(9);
  AttentionCase c({1, 160, 4, 2, 8}, kSmall, at::kFloat);
  const Tensor before = attention(c.tensors, c.settings, Kernels::kAten).clone();
  for (const int64_t cut : {5, 64, 101, 159}) {
    AttentionInputs changed = c.tensors;
    const int64_t first_block =
        reference::compressed_count(cut, kSmall); // blocks from here on contain a new token
    changed.q = c.tensors.q.clone();
    changed.q.narrow(1, cut, 160 - cut).normal_();
    for (int branch = 0; branch < 3; ++branch) {
      for (auto* x : {&changed.k[branch], &changed.v[branch]}) {
        *x = (*x)->clone();
        const int64_t from = branch == 0 ? first_block : cut;
        (*x)->narrow(1, from, (*x)->size(1) - from).normal_().mul_(30);
      }
    }
    const Tensor after = attention(changed, c.settings, Kernels::kAten);
    EXPECT_TRUE(at::equal(after.narrow(1, 0, cut), before.narrow(1, 0, cut))) << cut;
    EXPECT_FALSE(at::equal(after.narrow(1, cut, 160 - cut), before.narrow(1, cut, 160 - cut)));
  }
}

TEST(Semantics, OrderOfGivenIndicesDoesNotMatter) {
  at::manual_seed(10);
  const AttentionCase c({1, 120, 4, 2, 8}, kSmall, at::kFloat);
  const Tensor indices =
      std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
  EXPECT_TRUE(
      at::equal(c.run(Branch::kSelected, indices).o, c.run(Branch::kSelected, indices.flip(3)).o));
}

TEST(Selection, TiesGoToTheLowerBlock) {
  at::manual_seed(11);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    AttentionCase c({2, 400, 4, 2, 16}, kSmall, type);
    c.tensors.k[0] = at::zeros_like(*c.tensors.k[0]); // every key has the same score
    const Tensor indices =
        std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
    for (int64_t t = 64; t < 400; t += 21) {
      const int current = int(t / 16);
      const Tensor row = indices[1][t][0];
      EXPECT_TRUE(at::equal(row, at::tensor({0, 1, current - 1, current}, at::kInt))) << t << row;
    }
  }
}

TEST(Selection, InvariantsOfEveryRow) {
  at::manual_seed(12);
  const AttentionCase c({2, 333, 4, 2, 8}, kSmall, at::kFloat);
  const Tensor indices =
      std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
  const auto row = indices.accessor<int, 4>();
  for (int64_t t = 0; t < 333; ++t) {
    const int current = int(t / 16), expected = std::min(4, current + 1);
    std::vector<int> chosen;
    for (int slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(row[0][t][1][slot] >= 0, slot < expected);
      if (slot < expected) chosen.push_back(row[0][t][1][slot]);
    }
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
    EXPECT_THAT(chosen, testing::Contains(0));
    EXPECT_THAT(chosen, testing::Contains(current));
    EXPECT_THAT(chosen, testing::Contains(std::max(0, current - 1)));
  }
}

TEST(Gradients, LikeTheOracle) {
  at::manual_seed(13);
  for (const int64_t length : {1, 7, 8, 40, 150})
    expect_gradients_like_oracle(AttentionCase({2, length, 4, 2, 6}, kSmall, at::kDouble, true),
                                 Kernels::kAten, 1e-12);
  expect_gradients_like_oracle(AttentionCase({2, 150, 4, 2, 16}, kSmall, at::kFloat, true),
                               Kernels::kAten, 1e-5);
  AttentionCase documents({2, 140, 4, 2, 6}, kSmall, at::kDouble, true);
  documents.set_documents({3, 90, 1, 46});
  expect_gradients_like_oracle(documents, Kernels::kAten, 1e-12);
}

TEST(Gradients, GatesOfGroups) {
  at::manual_seed(14);
  AttentionCase c({2, 80, 6, 2, 4}, kSmall, at::kDouble, true);
  c.tensors.gates = at::rand({2, 80, 2, 3}, at::kDouble).set_requires_grad(true);
  expect_gradients_like_oracle(c, Kernels::kAten, 1e-12);
  expect_gradients_like_oracle(c, Kernels::kReference, 1e-12);
}

TEST(Gradients, BranchesOff) {
  at::manual_seed(16);
  AttentionCase c({1, 100, 4, 2, 8}, kSmall, at::kDouble, true);
  const reference::Outputs oracle = c.oracle();
  const Tensor gates = c.tensors.gates.detach();
  for (int off = 0; off < 3; ++off) {
    AttentionInputs inputs = c.tensors;
    inputs.k[off] = inputs.v[off] = std::nullopt;
    if (off == 0) inputs.indices = indices_tensor(c, oracle);
    Tensor expected = at::zeros(c.output_shape(), at::kDouble);
    for (int branch = 0; branch < 3; ++branch)
      if (branch != off)
        expected += gates.select(3, branch).unsqueeze(3) *
                    to_tensor(oracle.branch_o[branch], c.output_shape());
    for (const Kernels kernels : {Kernels::kAten, Kernels::kReference}) {
      const Tensor out = attention(inputs, c.settings, kernels);
      EXPECT_LE(largest_difference(out, expected), 1e-12) << choice::kernels_name(kernels);
      const auto grads = torch::autograd::grad({out.sum()}, {c.tensors.gates});
      EXPECT_EQ(grads[0].select(3, off).abs().max().item<double>(), 0);
    }
  }
}

TEST(Pool, LikeTheOracleWithItsGradient) {
  at::manual_seed(17);
  const Sizes sizes{12, 4, 16, 4, 12};
  for (const int64_t length : {3, 11, 12, 15, 16, 61}) {
    const Shape shape{2, length, 2, 2, 3};
    const Tensor x = at::randn({2, length, 2, 3}, at::kDouble).set_requires_grad(true);
    std::vector<int64_t> starts(2 * length, 0);
    for (int64_t t = length / 3; t < length; ++t)
      starts[t] = length / 3;
    const Tensor documents = at::tensor(starts, at::kLong).view({2, length});
    const Tensor out = pool(x, sizes, documents);
    EXPECT_LE(largest_difference(
                  out, to_tensor(reference::pool(shape, sizes, to_array(x), starts), out.sizes())),
              1e-14);
    const Tensor direction = at::randn(out.sizes(), at::kDouble);
    const auto grads = torch::autograd::grad({out}, {x}, {direction});
    EXPECT_LE(largest_difference(grads[0], to_tensor(reference::pool_backward(
                                                         shape, sizes, to_array(direction), starts),
                                                     x.sizes())),
              1e-14);
    // A window contains the tokens of a pooled token, so its mean equals the pooled token.
    EXPECT_LE(largest_difference(compression_windows(x, sizes, documents).mean(2), out), 1e-14);
  }
}

// The layers' fused form relies on this: attention() pools unpooled keys for every kind of kernels.
TEST(Pool, HappensInsideForKeysThatComeUnpooled) {
  at::manual_seed(28);
  for (const std::vector<int64_t>& documents :
       std::vector<std::vector<int64_t>>{{}, {70, 5, 45}, {7}})
    for (const Kernels kernels : {Kernels::kAten, Kernels::kReference}) {
      const int64_t length =
          documents.empty() ? 120 : std::reduce(documents.begin(), documents.end());
      AttentionCase c({2, length, 4, 2, 8}, kSmall, at::kDouble, true);
      if (!documents.empty()) c.set_documents(documents);
      for (auto* side : {&c.tensors.k, &c.tensors.v})
        (*side)[0] = at::randn_like(*c.tensors.k[1]).set_requires_grad(true);
      const Tensor direction = c.direction();
      const auto run = [&](bool inside) {
        AttentionInputs in = c.tensors;
        if (!inside) {
          in.k[0] = pool(*in.k[0], kSmall, in.document_start);
          in.v[0] = pool(*in.v[0], kSmall, in.document_start);
        }
        const Tensor out = attention(in, c.settings, kernels);
        auto all = torch::autograd::grad({out}, c.leaves(), {direction});
        all.push_back(out.detach());
        return all;
      };
      const auto inside = run(true), before = run(false);
      for (size_t i = 0; i < inside.size(); ++i)
        EXPECT_TRUE(at::equal(inside[i], before[i]))
            << choice::kernels_name(kernels) << ' ' << length << " tensor " << i;
      c.tensors.v[0] = pool(*c.tensors.v[0], kSmall, c.tensors.document_start);
      EXPECT_THROW(attention(c.tensors, c.settings, kernels), c10::Error) << "only v is pooled";
    }
}

TEST(Rope, RotatesHalfSplitPairsAndBackIsItsGradient) {
  at::manual_seed(18);
  const Tensor x = at::randn({2, 5, 3, 4}, at::kDouble).set_requires_grad(true);
  const Tensor angle = at::randn({5, 2}, at::kDouble);
  const Tensor out = rope(x, angle.cos(), angle.sin());
  const double c = std::cos(angle[3][1].item<double>()), s = std::sin(angle[3][1].item<double>());
  const double first = x[1][3][2][1].item<double>(), second = x[1][3][2][3].item<double>();
  EXPECT_NEAR(out[1][3][2][1].item<double>(), first * c - second * s, 1e-15);
  EXPECT_NEAR(out[1][3][2][3].item<double>(), second * c + first * s, 1e-15);
  const Tensor y = at::randn(out.sizes(), at::kDouble);
  const auto grads = torch::autograd::grad({out}, {x}, {y});
  const Tensor z = at::randn(out.sizes(), at::kDouble);
  // rope() is linear: <y, R z> = <R' y, z>.
  EXPECT_NEAR((y * rope(z, angle.cos(), angle.sin())).sum().item<double>(),
              (grads[0] * z).sum().item<double>(), 1e-12);
}

TEST(Library, OperatorsAreRegisteredAndDifferentiable) {
  at::manual_seed(19);
  const AttentionCase c({1, 100, 4, 2, 8}, kSmall, at::kFloat, true);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("nsa::attention", "");
  const AttentionInputs& in = c.tensors;
  std::vector<c10::IValue> stack{in.q,
                                 in.k[0],
                                 in.v[0],
                                 in.k[1],
                                 in.v[1],
                                 in.k[2],
                                 in.v[2],
                                 in.gates,
                                 int64_t(8),
                                 int64_t(4),
                                 int64_t(16),
                                 int64_t(4),
                                 int64_t(12),
                                 0.0,
                                 c10::IValue(),
                                 c10::IValue(),
                                 std::string("aten")};
  op.callBoxed(stack);
  const Tensor out = stack[0].toTensor();
  EXPECT_TRUE(at::equal(out, attention(c.tensors, c.settings, Kernels::kAten)));
  EXPECT_TRUE(out.requires_grad());
  for (const char* name :
       {"nsa::compressed_attention", "nsa::selected_attention", "nsa::sliding_attention",
        "nsa::select", "nsa::pool", "nsa::rope", "nsa::fused_attention", "nsa::fused_kernels",
        "nsa::fused_causal_attention"})
    EXPECT_TRUE(c10::Dispatcher::singleton().findSchema({name, ""})) << name;
}

TEST(Library, MetaTensorsGiveShapes) {
  AttentionCase c({3, 100, 4, 2, 8}, kSmall, at::kBFloat16);
  for (Tensor* x : {&c.tensors.q, &c.tensors.gates})
    *x = x->to(at::kMeta);
  for (int branch = 0; branch < 3; ++branch) {
    c.tensors.k[branch] = c.tensors.k[branch]->to(at::kMeta);
    c.tensors.v[branch] = c.tensors.v[branch]->to(at::kMeta);
  }
  c.tensors.q.set_requires_grad(true);
  const Tensor out = attention(c.tensors, c.settings, Kernels::kAten);
  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.sizes(), c.tensors.q.sizes());
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  AttentionInputs unpooled = c.tensors;
  unpooled.k[0] = c.tensors.k[1];
  unpooled.v[0] = c.tensors.v[1];
  EXPECT_EQ(attention(unpooled, c.settings, Kernels::kAten).sizes(), c.tensors.q.sizes());
  const auto grads = torch::autograd::grad({out.sum()}, {c.tensors.q});
  EXPECT_EQ(grads[0].sizes(), c.tensors.q.sizes());
  const auto [scores, indices] = select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt);
  EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{3, 100, 2, 7}));
  EXPECT_EQ(indices.sizes(), (std::vector<int64_t>{3, 100, 2, 4}));
  EXPECT_EQ(pool(*c.tensors.k[1], kSmall, std::nullopt).sizes(),
            (std::vector<int64_t>{3, 24, 2, 8}));
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Refusals, SayWhatIsNeeded) {
  const AttentionCase c({1, 100, 4, 2, 8}, kSmall, at::kFloat);
  EXPECT_THAT(refusal([&] { attention(c.tensors, c.settings, Kernels::kFused); }),
              testing::HasSubstr("CUDA GPU"));
  const std::vector<Kernels> known = {Kernels::kAten, Kernels::kFused};
  EXPECT_EQ(parse_kernels("decode_attention", "fused", known), Kernels::kFused);
  for (const char* name : {"fast", "reference", ""})
    EXPECT_THAT(refusal([&] { parse_kernels("decode_attention", name, known); }),
                testing::HasSubstr("decode_attention: kernels = \"" + std::string(name) +
                                   "\" is not known: write aten or fused"));
  EXPECT_THAT(refusal([&] { c.run(Branch::kSelected, std::nullopt); }),
              testing::HasSubstr("nsa::select"));
  AttentionInputs mixed = c.tensors;
  mixed.k[1] = mixed.k[1]->to(at::kBFloat16);
  EXPECT_THAT(refusal([&] { attention(mixed, c.settings, Kernels::kAten); }),
              testing::HasSubstr("one floating dtype"));
  AttentionInputs gates = c.tensors;
  gates.gates = gates.gates.to(at::kBFloat16);
  EXPECT_THAT(refusal([&] { attention(gates, c.settings, Kernels::kAten); }),
              testing::HasSubstr("gates must be Float"));
  AttentionInputs documents = c.tensors;
  documents.document_start = at::zeros({1, 99}, at::kLong);
  EXPECT_THAT(refusal([&] { attention(documents, c.settings, Kernels::kAten); }),
              testing::HasSubstr("document_start"));
}

} // namespace
} // namespace nsa::ops
