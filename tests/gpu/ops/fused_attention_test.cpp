// Compares nsa::fused_attention and nsa::fused_causal_attention with the ATen operators in float64
// on the same GPU: outputs and every gradient. The tolerance is that of a plain BF16 evaluation.
// tests/gpu/kernels checks the kernels alone, with poisoned buffers and adversarial scores.
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/fused.h"
#include "nsa_model/ops/fused_support.h"
#include "tests/gpu/gpu_host.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

namespace nsa::ops {
namespace {

using at::Tensor;

class FusedAttention : public testing::Test {
protected:
  void SetUp() override {
    if (!fused_missing().empty()) GTEST_SKIP() << fused_missing();
  }
};

struct Problem {
  int64_t batch, sequence, groups;
  int64_t gate_width; // per head or per group
  std::array<bool, 3> on = {true, true, true};
  int64_t heads = 6;                   // per group
  std::vector<int64_t> documents = {}; // their lengths in every row; empty: one document per row
  int64_t dim = 64;
  bool pooled = false; // the operator pools: it gets as many compressed keys as there are tokens
};

// Returns the output, then gradients of q, gates and the branches' k and v.
std::vector<Tensor> run(const Problem& problem, Kernels kernels, at::ScalarType type) {
  const int64_t heads = problem.heads * problem.groups;
  const int64_t compressed = compressed_count(problem.sequence, Sizes{});
  const auto cuda = at::TensorOptions().device(at::kCUDA).dtype(at::kFloat);
  at::manual_seed(7);
  std::vector<Tensor> leaves;
  const auto leaf = [&](at::IntArrayRef sizes, double deviation) {
    Tensor t = (at::randn(sizes, cuda) * deviation).to(at::kBFloat16).to(type);
    t.set_requires_grad(true);
    leaves.push_back(t);
    return t;
  };
  AttentionInputs in;
  in.q = leaf({problem.batch, problem.sequence, heads, problem.dim}, 1.0);
  in.gates = at::rand({problem.batch, problem.sequence, problem.gate_width, 3}, cuda)
                 .to(type == at::kDouble ? at::kDouble : at::kFloat);
  in.gates.set_requires_grad(true);
  leaves.push_back(in.gates);
  for (std::size_t branch = 0; branch < 3; ++branch) {
    const int64_t keys = branch == 0 && !problem.pooled ? compressed : problem.sequence;
    const double deviation = branch != 0 ? 1.0 : problem.pooled ? 4.0 : 0.7;
    const Tensor k = leaf({problem.batch, keys, problem.groups, problem.dim}, deviation);
    const Tensor v = leaf({problem.batch, keys, problem.groups, problem.dim}, 1.0);
    if (!problem.on[branch]) {
      leaves.resize(leaves.size() - 2);
      continue;
    }
    in.k[branch] = k;
    in.v[branch] = v;
  }
  if (!problem.documents.empty()) {
    Tensor start = at::empty({problem.sequence}, at::kLong);
    int64_t begin = 0;
    for (const int64_t length : problem.documents) {
      start.narrow(0, begin, length).fill_(begin);
      begin += length;
    }
    in.document_start = start.repeat({problem.batch, 1});
  }
  const Tensor grad = at::randn(in.q.sizes(), cuda).to(at::kBFloat16).to(type);
  const Tensor out = attention(in, Settings{}, kernels);
  std::vector<Tensor> results = {out.detach()};
  for (const Tensor& g : torch::autograd::grad({out}, leaves, {grad}))
    results.push_back(g);
  return results;
}

double relative(const Tensor& value, const Tensor& reference) {
  if (reference.numel() == 0) return 0;
  const double norm = reference.norm().item<double>();
  const double error = (value.to(at::kDouble) - reference).norm().item<double>();
  return norm > 0 ? error / norm : error;
}

void expect_close(const Problem& problem) {
  const auto fused = run(problem, Kernels::kFused, at::kBFloat16);
  const auto exact = run(problem, Kernels::kAten, at::kDouble);
  const auto plain = run(problem, Kernels::kAten, at::kBFloat16);
  ASSERT_EQ(fused.size(), exact.size());
  for (std::size_t i = 0; i < fused.size(); ++i) {
    const double error = relative(fused[i], exact[i]);
    const double limit = std::max(i == 0 ? 0.005 : 0.01, 1.5 * relative(plain[i], exact[i]));
    EXPECT_LE(error, limit) << "tensor " << i;
    EXPECT_TRUE(fused[i].isfinite().all().item<bool>()) << "tensor " << i;
  }
}

TEST_F(FusedAttention, AgreesWithFloat64) {
  expect_close({1, 2048, 2, 12});
}
TEST_F(FusedAttention, TakesOneGateAGroupAndOddLengths) {
  expect_close({2, 1111, 2, 2});
}
TEST_F(FusedAttention, ServesSequencesWithoutCompressedTokens) {
  expect_close({1, 20, 1, 6});
}
TEST_F(FusedAttention, LeavesOutBranches) {
  expect_close({1, 700, 2, 12, {true, false, true}});
  expect_close({1, 700, 2, 12, {false, false, true}});
  expect_close({1, 1500, 2, 12, {true, true, false}});
}
TEST_F(FusedAttention, ServesOneToSixteenHeadsAGroup) {
  for (const int64_t heads : {1, 4, 5, 16})
    expect_close({1, 1200, 2, 2 * heads, {true, true, true}, heads});
}
TEST_F(FusedAttention, RestartsAtEachDocument) {
  expect_close({2, 2000, 2, 12, {true, true, true}, 6, {1200, 1, 30, 769}});
}
TEST_F(FusedAttention, RunsDocumentsOfLikeLengthsTogether) {
  const std::vector<int64_t> lengths = {40, 33, 1,   700, 64, 31, 5,  90,   1000, 150,
                                        63, 65, 300, 2,   16, 47, 32, 1025, 260,  276};
  for (const bool pooled : {false, true}) {
    expect_close({4, 4200, 2, 12, {true, true, true}, 6, lengths, 64, pooled});
    expect_close({2, 4200, 1, 2, {true, true, true}, 2, lengths, 128, pooled});
  }
  expect_close({3, 4200, 2, 12, {true, false, true}, 6, lengths, 64, true});
}

TEST_F(FusedAttention, ServesHeadsOf128Dimensions) {
  expect_close({1, 2100, 2, 12, {true, true, true}, 6, {}, 128});
  expect_close({2, 1300, 2, 2, {true, true, true}, 3, {700, 40, 560}, 128});
}
TEST_F(FusedAttention, SaysWhichKernelsServe) {
  const auto bf16 = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  const std::string narrow = fused_kernels(at::empty({0, 64}, bf16)); // depends on the GPU
  EXPECT_TRUE(narrow == "hopper" || narrow == "portable") << narrow;
  EXPECT_EQ(fused_kernels(at::empty({0, 128}, bf16)), narrow);
}

TEST_F(FusedAttention, RepeatsBitByBit) {
  const Problem problem{1, 3000, 2, 12};
  const auto first = run(problem, Kernels::kFused, at::kBFloat16);
  for (int i = 0; i < 5; ++i) {
    const auto again = run(problem, Kernels::kFused, at::kBFloat16);
    for (std::size_t t = 0; t < first.size(); ++t)
      EXPECT_TRUE(at::equal(first[t], again[t])) << "tensor " << t;
  }
}

// The inputs of nsa-bench attention: a batch of 32,768 tokens, forward passes whose graphs are not
// used, and two backward passes of the same graph.
TEST_F(FusedAttention, TakesAWholeBatchAndItsBackwardTwice) {
  const auto bf16 = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  for (const int64_t sequence : {2048, 8192}) {
    const int64_t batch = 32768 / sequence;
    std::vector<Tensor> leaves;
    const auto leaf = [&](const Tensor& t) {
      leaves.push_back(t.set_requires_grad(true));
      return t;
    };
    AttentionInputs in;
    in.q = leaf(at::randn({batch, sequence, 12, 64}, bf16));
    in.gates = leaf(at::rand({batch, sequence, 12, 3}, bf16.dtype(at::kFloat)));
    for (std::size_t branch = 0; branch < 3; ++branch) {
      const int64_t keys = branch == 0 ? compressed_count(sequence, Sizes{}) : sequence;
      in.k[branch] = leaf(at::randn({batch, keys, 2, 64}, bf16));
      in.v[branch] = leaf(at::randn({batch, keys, 2, 64}, bf16));
    }
    const Tensor grad = at::randn_like(in.q);
    for (int i = 0; i < 3; ++i)
      attention(in, Settings{}, Kernels::kFused);
    const Tensor out = attention(in, Settings{}, Kernels::kFused);
    const auto first = torch::autograd::grad({out}, leaves, {grad}, /*retain_graph=*/true);
    const auto again = torch::autograd::grad({out}, leaves, {grad});
    for (std::size_t t = 0; t < first.size(); ++t) {
      EXPECT_TRUE(first[t].isfinite().all().item<bool>()) << sequence << ", tensor " << t;
      EXPECT_TRUE(at::equal(first[t], again[t])) << sequence << ", tensor " << t;
    }
  }
}

// Calls of the driver need a context. The runtime gives a thread one with its first call that needs
// it. If memory comes from the allocator's cache, the operator's calls are the thread's first ones.
TEST_F(FusedAttention, ServesAThreadThatHasMadeNoCallYet) {
  const auto bf16 = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  AttentionInputs in;
  in.q = at::randn({2, 2048, 12, 64}, bf16);
  in.gates = at::rand({2, 2048, 12, 3}, bf16.dtype(at::kFloat));
  for (std::size_t branch = 0; branch < 3; ++branch) {
    const int64_t keys = branch == 0 ? compressed_count(2048, Sizes{}) : 2048;
    in.k[branch] = at::randn({2, keys, 2, 64}, bf16);
    in.v[branch] = at::randn({2, keys, 2, 64}, bf16);
  }
  const auto want = attention(in, Settings{}, Kernels::kFused).cpu();
  attention(in, Settings{}, Kernels::kFused); // its memory returns to the cache
  Tensor got;
  std::string failure;
  std::thread([&] {
    try {
      got = attention(in, Settings{}, Kernels::kFused);
    } catch (const c10::Error& error) {
      failure = error.what_without_backtrace();
    }
  }).join();
  ASSERT_EQ(failure, "");
  EXPECT_TRUE(at::equal(got.cpu(), want));
}

TEST_F(FusedAttention, RefusesWhatItDoesNotServe) {
  const auto bf16 = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  AttentionInputs in;
  in.q = at::zeros({1, 64, 34, 64}, bf16); // 17 heads per group
  in.k[2] = in.v[2] = at::zeros({1, 64, 2, 64}, bf16);
  in.gates = at::ones({1, 64, 34, 3}, bf16.dtype(at::kFloat));
  EXPECT_THROW(attention(in, Settings{}, Kernels::kFused), c10::Error);
  in.q = at::zeros({1, 64, 12, 64}, bf16);
  in.gates = at::ones({1, 64, 12, 3}, bf16.dtype(at::kFloat));
  Settings other;
  other.sizes.window = 256;
  EXPECT_THROW(attention(in, other, Kernels::kFused), c10::Error);
  EXPECT_NO_THROW(attention(in, Settings{}, Kernels::kFused));
}

class CausalAttention : public FusedAttention {
protected:
  void SetUp() override {
    FusedAttention::SetUp();
    if (!IsSkipped() && compute_capability(at::kCUDA) != 90)
      GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
};

struct CausalProblem {
  int64_t batch, sequence, groups, heads; // heads per group
};

// Returns the output, then gradients of q, k and v. They come from the kernels, or from a window
// over everything.
std::vector<Tensor> run_causal(const CausalProblem& problem, bool fused, at::ScalarType type) {
  const auto cuda = at::TensorOptions().device(at::kCUDA).dtype(at::kFloat);
  at::manual_seed(11);
  std::vector<Tensor> leaves;
  for (const int64_t heads : {problem.heads * problem.groups, problem.groups, problem.groups})
    leaves.push_back(at::randn({problem.batch, problem.sequence, heads, 64}, cuda)
                         .to(at::kBFloat16)
                         .to(type)
                         .set_requires_grad(true));
  const Tensor grad = at::randn(leaves[0].sizes(), cuda).to(at::kBFloat16).to(type);
  Settings everything;
  everything.sizes.window = problem.sequence;
  const Tensor out = fused ? fused_causal_attention(leaves[0], leaves[1], leaves[2])
                           : branch_attention(Branch::kSliding, leaves[0], leaves[1], leaves[2],
                                              std::nullopt, everything, std::nullopt, {})
                                 .o;
  std::vector<Tensor> results = {out.detach()};
  for (const Tensor& g : torch::autograd::grad({out}, leaves, {grad}))
    results.push_back(g);
  return results;
}

TEST_F(CausalAttention, AgreesWithFloat64) {
  std::vector<CausalProblem> problems;
  for (const int64_t sequence : {1, 2, 31, 32, 33, 63, 64, 65, 127, 1000})
    problems.push_back({2, sequence, 2, 6});
  for (const int64_t heads : {1, 4, 5, 16})
    problems.push_back({1, 1000, 2, heads});
  problems.push_back({1, 4096, 1, 6});
  for (const CausalProblem& problem : problems) {
    const auto fused = run_causal(problem, true, at::kBFloat16);
    const auto exact = run_causal(problem, false, at::kDouble);
    const auto plain = run_causal(problem, false, at::kBFloat16);
    for (std::size_t i = 0; i < fused.size(); ++i) {
      const double limit = std::max(i == 0 ? 0.005 : 0.01, 1.5 * relative(plain[i], exact[i]));
      EXPECT_LE(relative(fused[i], exact[i]), limit)
          << "tensor " << i << " of " << problem.sequence << " tokens, " << problem.heads
          << " heads a group";
      EXPECT_TRUE(fused[i].isfinite().all().item<bool>());
      EXPECT_EQ(fused[i].sizes(), exact[i].sizes());
    }
  }
}

TEST_F(CausalAttention, TakesViewsAndRepeatsBitByBit) {
  const auto bf16 = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  at::manual_seed(12);
  // Heads as they come from one projection, and a gradient as it comes from a transposed product.
  const Tensor joined = at::randn({2, 700, 16, 64}, bf16).set_requires_grad(true);
  const Tensor grad = at::randn({2, 12, 700, 64}, bf16).transpose(1, 2);
  const auto run_once = [&] {
    const Tensor out = fused_causal_attention(joined.narrow(2, 0, 12), joined.narrow(2, 12, 2),
                                              joined.narrow(2, 14, 2));
    return std::vector<Tensor>{out.detach(), torch::autograd::grad({out}, {joined}, {grad})[0]};
  };
  const auto first = run_once();
  EXPECT_GT(first[1].narrow(2, 12, 4).abs().max().item<double>(), 0);
  for (int i = 0; i < 5; ++i) {
    const auto again = run_once();
    EXPECT_TRUE(at::equal(first[0], again[0]));
    EXPECT_TRUE(at::equal(first[1], again[1]));
  }
}

TEST_F(CausalAttention, RefusesWhatItDoesNotServe) {
  EXPECT_EQ(why_not_fused_causal(at::kCUDA, 8, 12, 2, 64, 4096), "");
  EXPECT_NE(why_not_fused_causal(at::kCUDA, 8, 12, 2, 128, 4096), "");
  const auto bf16 = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  const auto refused = [](const Tensor& q, const Tensor& k) {
    EXPECT_THROW(fused_causal_attention(q, k, k), c10::Error);
  };
  refused(at::zeros({1, 64, 34, 64}, bf16), at::zeros({1, 64, 2, 64}, bf16)); // 17 heads per group
  refused(at::zeros({1, 64, 12, 128}, bf16), at::zeros({1, 64, 2, 128}, bf16));
  refused(at::zeros({1, 64, 12, 64}, bf16), at::zeros({1, 63, 2, 64}, bf16));
  const auto fp32 = bf16.dtype(at::kFloat);
  refused(at::zeros({1, 64, 12, 64}, fp32), at::zeros({1, 64, 2, 64}, fp32));
}

} // namespace
} // namespace nsa::ops
