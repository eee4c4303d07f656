// The proofs of tests/unit/ops for the ways that a GPU takes: regrouped ATen and the fused kernels,
// with the paper's sizes in BF16. The judge is the chunked way in FP64 on the same device. The
// CPU's way runs here as well, so that every machine runs a test.
#include "tests/gpu/gpu_host.h"
#include "tests/unit/ops/attention_case.h"

#include <limits>
#include <random>

namespace nsa::ops {
namespace {

using at::Tensor;

struct Way {
  const char* name;
  bool gpu;
  Kernels kernels;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

// Returns "" or the reason why this way cannot run here.
std::string missing(const Way& way) {
  // Called for the CPU's way too, before a tensor is used.
  const std::string& no_gpu = gpu_missing();
  if (!way.gpu) return "";
  return way.kernels == Kernels::kFused ? fused_missing() : no_gpu;
}

class Exactness : public testing::TestWithParam<Way> {
protected:
  void SetUp() override {
    if (const std::string reason = missing(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    // Deterministic algorithms need this setting for cuBLAS. LibTorch reads it at the first
    // product.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::manual_seed(1);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
  at::Device device() const { return GetParam().gpu ? at::Device("cuda") : at::Device("cpu"); }

  // BF16 values, 6 heads per group and D = 64, as the fused kernels need them.
  AttentionCase make(int64_t length, bool requires_grad = false) const {
    const int64_t groups = GetParam().gpu ? 2 : 1;
    AttentionCase c({1, length, 6 * groups, groups, 64}, Sizes{}, at::kBFloat16);
    move(c, at::kBFloat16, requires_grad);
    return c;
  }
  void move(AttentionCase& c, at::ScalarType type, bool requires_grad) const {
    const auto to = [&](const Tensor& x, at::ScalarType into) {
      return x.detach().to(device(), into).set_requires_grad(requires_grad);
    };
    c.tensors.q = to(c.tensors.q, type);
    c.tensors.gates = to(c.tensors.gates, compute_type(type));
    for (int branch = 0; branch < 3; ++branch) {
      c.tensors.k[branch] = to(*c.tensors.k[branch], type);
      c.tensors.v[branch] = to(*c.tensors.v[branch], type);
    }
  }
  // Sets the gates so that only this branch counts.
  void single_out(AttentionCase& c, int branch) const {
    Tensor gates = at::zeros_like(c.tensors.gates.detach());
    gates.select(3, branch).fill_(1);
    c.tensors.gates = gates.set_requires_grad(c.tensors.gates.requires_grad());
  }
  Tensor run(const AttentionCase& c) const {
    return attention(c.tensors, c.settings, GetParam().kernels);
  }
  // The same problem in FP64 by the chunked way, with the given selection.
  AttentionCase exact(AttentionCase c, const OptionalTensor& indices) const {
    move(c, at::kDouble, c.tensors.q.requires_grad());
    c.tensors.indices = indices;
    return c;
  }
};

Tensor selection(const AttentionCase& c) {
  return std::get<1>(select(c.tensors.q, *c.tensors.k[0], c.settings, std::nullopt));
}

double root_mean_square(const Tensor& x) {
  return x.numel() == 0 ? 0 : x.detach().to(at::kDouble).pow(2).mean().sqrt().item<double>();
}

// Returns the output and the gradients of the leaves.
std::vector<Tensor> results(const Tensor& out, const AttentionCase& c, const Tensor& direction) {
  std::vector<Tensor> all =
      torch::autograd::grad({out}, c.leaves(), {direction.to(out.device(), out.scalar_type())});
  all.insert(all.begin(), out.detach());
  return all;
}

// Returns the results of a plain BF16 evaluation on the CPU.
std::vector<Tensor> plain_results(AttentionCase c, const Tensor& indices, const Tensor& direction) {
  const auto on_cpu = [](const Tensor& x) { return x.detach().cpu().set_requires_grad(true); };
  c.tensors.q = on_cpu(c.tensors.q);
  c.tensors.gates = on_cpu(c.tensors.gates);
  for (int branch = 0; branch < 3; ++branch) {
    c.tensors.k[branch] = on_cpu(*c.tensors.k[branch]);
    c.tensors.v[branch] = on_cpu(*c.tensors.v[branch]);
  }
  return results(plain_attention(c, indices.cpu()), c, direction);
}

// Compares output and gradients with FP64 for the same selection. The limits are 0.5 % and 1 %.
// With `plain_too` the limit may be 1.5 times the error of a plain BF16 evaluation, which is
// computed only if it matters.
void expect_exact(const AttentionCase& c, const AttentionCase& wide, const Tensor& out,
                  const Tensor& indices, bool plain_too, const std::string& what) {
  const Tensor direction = c.direction();
  const auto found = results(out, c, direction);
  const auto wanted =
      results(attention(wide.tensors, wide.settings, Kernels::kAten), wide, direction);
  std::vector<Tensor> plain;
  const auto error = [&](const Tensor& value, size_t i) {
    return root_mean_square(value.to(wanted[i].device(), at::kDouble) - wanted[i]);
  };
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i].isfinite().all().item<bool>()) << what << " tensor " << i;
    // Where FP64 gives zero (a single key has no gradient), the rest is FP32 rounding. It comes
    // from two equal sums of D products of numbers near one: D 2^-24.
    double limit = std::max((i == 0 ? 0.005 : 0.01) * root_mean_square(wanted[i]), 64 * 0x1p-24);
    const double off = error(found[i], i);
    if (off > limit && plain_too) {
      if (plain.empty()) plain = plain_results(c, indices, direction);
      limit = std::max(limit, 1.5 * error(plain[i], i));
    }
    EXPECT_LE(off, limit) << what << " tensor " << i;
  }
}

TEST_P(Exactness, AnyLength) {
  std::vector<int64_t> lengths{1, 31, 32, 65};
  std::mt19937 engine(5);
  const int64_t parts = GetParam().gpu ? 16 : 1, width = GetParam().gpu ? 4096 / parts : 400;
  for (int64_t part = 0; part < parts; ++part)
    lengths.push_back(part * width + 1 + int64_t(engine() % uint64_t(width)));
  if (GetParam().gpu) lengths.insert(lengths.end(), {1024, 1025, 4096});
  for (const int64_t length : lengths) {
    const AttentionCase c = make(length, true);
    const Tensor indices = selection(c);
    expect_exact(c, exact(c, indices), run(c), indices, length <= 65,
                 "S = " + std::to_string(length));
  }
}

TEST_P(Exactness, FutureTokensChangeNoPastBit) {
  const int64_t length = GetParam().gpu ? 1900 : 300;
  AttentionCase c = make(length);
  const Tensor before = run(c).clone();
  for (const int64_t cut : {int64_t(1), length / 3, length * 3 / 5, length - 1}) {
    AttentionCase changed = c;
    const auto replace = [&](const Tensor& x, int64_t from, double factor) {
      Tensor copy = x.clone();
      copy.narrow(1, from, copy.size(1) - from).normal_().mul_(factor);
      return copy;
    };
    changed.tensors.q = replace(c.tensors.q, cut, 1);
    for (int branch = 0; branch < 3; ++branch) {
      const int64_t from = branch == 0 ? reference::compressed_count(cut, c.settings.sizes) : cut;
      changed.tensors.k[branch] = replace(*c.tensors.k[branch], from, 20);
      changed.tensors.v[branch] = replace(*c.tensors.v[branch], from, 20);
    }
    const Tensor after = run(changed);
    EXPECT_TRUE(at::equal(after.narrow(1, 0, cut), before.narrow(1, 0, cut))) << "cut " << cut;
    EXPECT_FALSE(at::equal(after, before));
  }
}

TEST_P(Exactness, SelectedAndSlidingAreDenseWhileTheyHoldTheText) {
  for (const auto& [branch, length] : {std::pair{1, int64_t(1024)}, {1, 700}, {2, 512}, {2, 100}}) {
    if (!GetParam().gpu && length > 700) continue;
    AttentionCase c = make(length);
    single_out(c, branch);
    AttentionCase dense = exact(c, std::nullopt); // with a window over everything
    dense.tensors.k[2] = dense.tensors.k[branch];
    dense.tensors.v[2] = dense.tensors.v[branch];
    dense.settings.sizes.window = length;
    const Tensor wanted = dense.run(Branch::kSliding, std::nullopt).o;
    EXPECT_LE(root_mean_square(run(c).to(at::kDouble) - wanted), 0.005 * root_mean_square(wanted))
        << "branch " << branch << ", S = " << length;
  }
}

TEST_P(Exactness, TiesGoToTheLowerBlock) {
  const int64_t length = GetParam().gpu ? 2000 : 1300;
  AttentionCase c = make(length);
  c.tensors.k[0] = at::zeros_like(*c.tensors.k[0]);
  single_out(c, 1);
  Tensor indices = at::empty({1, length, c.shape.groups, 16}, at::kInt);
  for (int64_t t = 0; t < length; ++t)
    for (int64_t slot = 0; slot < 16; ++slot) {
      const int64_t current = t / 64;
      const int64_t block =
          current < 16 ? (slot <= current ? slot : -1) : (slot < 14 ? slot : current - 15 + slot);
      indices.select(1, t).select(2, slot).fill_(block);
    }
  indices = indices.to(device());
  EXPECT_TRUE(at::equal(selection(c), indices));
  const AttentionCase wide = exact(c, indices);
  const Tensor wanted = attention(wide.tensors, wide.settings, Kernels::kAten);
  // A row with another selection would be wrong by a tenth of its size or more.
  const Tensor found = run(c).to(at::kDouble);
  const Tensor off =
      (found - wanted).norm(2, at::IntArrayRef{3}) / wanted.norm(2, at::IntArrayRef{3});
  EXPECT_LE(off.max().item<double>(), 0.05);
}

TEST_P(Exactness, TokensBeforeTheFirstBlockGiveZeroAndNoGradient) {
  AttentionCase c = make(200, true);
  single_out(c, 0);
  const Tensor out = run(c);
  const auto grads = torch::autograd::grad({out}, c.leaves(), {at::ones_like(out)});
  EXPECT_EQ(root_mean_square(out.narrow(1, 0, 31)), 0);
  EXPECT_GT(root_mean_square(out.narrow(1, 31, 169)), 0);
  EXPECT_EQ(root_mean_square(grads[0].narrow(1, 0, 31)), 0);
  for (const Tensor& grad : grads)
    EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

// Indices that no selection would return. tests/unit/ops/edges_test.cpp compares the same with the
// oracle.
class GivenIndices : public Exactness {
protected:
  int64_t length() const { return GetParam().gpu ? 1500 : 330; }
  template <typename Block> Tensor given(const AttentionCase& c, const Block& block) const {
    Tensor indices = at::empty({1, c.shape.sequence, c.shape.groups, 16}, at::kInt);
    auto values = indices.accessor<int, 4>();
    for (int64_t t = 0; t < c.shape.sequence; ++t)
      for (int64_t group = 0; group < c.shape.groups; ++group)
        for (int64_t slot = 0; slot < 16; ++slot)
          values[0][t][group][slot] = block(t, group, slot);
    return indices.to(device());
  }
  void expect_like_float64(AttentionCase c, const Tensor& indices, const std::string& what) const {
    c.tensors.indices = indices;
    expect_exact(c, exact(c, indices), run(c), indices, true, what);
  }
};

TEST_P(GivenIndices, OneBlockForAllQueries) {
  const AttentionCase c = make(length(), true);
  expect_like_float64(
      c, given(c, [](int64_t, int64_t, int64_t slot) { return slot == 0 ? 2 : -1; }), "block 2");
}

// The same blocks in another order, or one of them twice, change no bit. The fused way needs no
// setting for this. On a GPU, ATen computes the other branches with FlashAttention. Its backward
// pass sums dQ with atomics, so two runs with the same indices differ in dQ, the first of the
// gradients, and only in it. So the test asks for deterministic algorithms, as train.deterministic
// does. Without them the results are compared only with FP64.
TEST_P(GivenIndices, AreASet) {
  const bool flash = GetParam().gpu && GetParam().kernels == Kernels::kAten;
  at::globalContext().setDeterministicAlgorithms(flash, false);
  AttentionCase c = make(length(), true);
  const Tensor direction = c.direction();
  const auto of = [&](const Tensor& indices) {
    c.tensors.indices = indices;
    return results(run(c), c, direction);
  };
  const Tensor own = selection(c);
  const Tensor repeated = at::where(own.lt(0), own.select(3, 0).unsqueeze(3), own);
  const auto wanted = of(own);
  for (const Tensor& same : {own.flip(3), own.roll(5, 3), repeated}) {
    const auto found = of(same);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(at::equal(found[i], wanted[i])) << i;
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
  expect_like_float64(c, repeated, "repeated");
}

TEST_P(GivenIndices, OfQueriesThatSeeLittleOrNothing) {
  AttentionCase c = make(length(), true);
  const Tensor indices = given(c, [](int64_t t, int64_t group, int64_t slot) {
    const int own = int(t / 64);
    if (own == 2) return -1; // all tokens of this block list no block
    if (t % 5 == 0) return -1;
    // Later blocks, and blocks after the end of the text.
    if (t % 5 == 1) return own + 1 + int(slot);
    if (t % 5 == 2) return slot % 2 == 0 ? 1 << 20 : std::numeric_limits<int>::min();
    return slot < 2 ? -1 : int(slot - 2 + group);
  });
  expect_like_float64(c, indices, "blind queries");
  single_out(c, 1);
  c.tensors.indices = indices;
  const Tensor out = run(c);
  const auto grads = torch::autograd::grad({out}, c.leaves(), {at::ones_like(out)});
  for (const int64_t t : {0, 5, 6, 7, 128, 131, 191}) {
    EXPECT_EQ(root_mean_square(out.select(1, t)), 0) << t;
    EXPECT_EQ(root_mean_square(grads[0].select(1, t)), 0) << t;
  }
  EXPECT_GT(root_mean_square(out.select(1, 8)), 0);
}

const auto kWays =
    testing::Values(Way{"cpu_aten", false, Kernels::kAten}, Way{"gpu_aten", true, Kernels::kAten},
                    Way{"gpu_fused", true, Kernels::kFused});
const auto name_of = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(, Exactness, kWays, name_of);
INSTANTIATE_TEST_SUITE_P(, GivenIndices, kWays, name_of);

} // namespace
} // namespace nsa::ops
