// Runs the threads of the head-split kernels one after the other on the CPU. Every element is
// written once, with the same values as the composition of ATen operations.
#include "nsa_model/kernels/head_split/head_split.cuh"
#include "nsa_model/ops/layer.h"

#include <gtest/gtest.h>

namespace nsa::kernels {
namespace {

using at::Tensor;

__nv_bfloat16* bf16(const Tensor& tensor) {
  return static_cast<__nv_bfloat16*>(tensor.data_ptr());
}

struct Case {
  int batch, sequence, heads, groups, head_dim, sets, rotated;
  bool mean, table_per_token;
};

void expect_same(const Tensor& found, const Tensor& wanted, const char* what) {
  const double scale = wanted.to(at::kDouble).norm().item<double>();
  const double error = (found.to(at::kDouble) - wanted.to(at::kDouble)).norm().item<double>();
  // The composition rounds a query's gradient before it adds the mean's gradient; the kernel rounds
  // after that.
  EXPECT_LE(error, 0.004 * scale) << what;
}

void check(const Case& c) {
  at::manual_seed(3);
  const auto options = at::TensorOptions().dtype(at::kBFloat16);
  const auto random = [&](int64_t heads) {
    return at::randn({c.batch, c.sequence, heads, c.head_dim}).to(at::kBFloat16);
  };
  const auto unwritten = [&](int64_t heads) {
    return at::full({c.batch, c.sequence, heads, c.head_dim}, NAN, options);
  };
  const int64_t all = c.heads + c.sets * c.groups;
  const Tensor joined = random(all).flatten(2);
  const Tensor angle = at::randn({c.sequence * (c.table_per_token ? c.batch : 1), c.head_dim / 2});
  const Tensor cos = angle.cos(), sin = angle.sin();
  HeadSplitParams split{};
  split.layout = {int64_t{c.batch} * c.sequence,
                  c.sequence,
                  c.heads,
                  c.groups,
                  c.head_dim,
                  c.sets,
                  c.rotated,
                  c.table_per_token,
                  cos.data_ptr<float>(),
                  sin.data_ptr<float>()};
  HeadSplitBackwardParams join{};
  join.layout = split.layout;
  std::vector<Tensor> found{unwritten(c.heads)}, grads{random(c.heads)};
  split.joined = bf16(joined);
  for (int set = 0; set < c.sets; ++set) {
    found.push_back(unwritten(c.groups));
    grads.push_back(random(c.groups));
    split.set[set] = bf16(found.back());
    join.d_set[set] = bf16(grads.back());
  }
  if (c.mean) {
    found.push_back(unwritten(c.groups));
    grads.push_back(random(c.groups));
    split.mean = bf16(found.back());
    join.d_mean = bf16(grads.back());
  }
  split.q = bf16(found[0]);
  join.d_q = bf16(grads[0]);
  const Tensor d_joined = at::full_like(joined, NAN);
  join.d_joined = bf16(d_joined);
  for (int64_t thread = 0; thread < head_split_threads(split.layout); ++thread) {
    split_chunk(split, thread);
    join_chunk(join, thread);
  }
  const std::vector<Tensor> wanted = ops::composed::split_heads(joined, cos, sin, c.heads, c.groups,
                                                                c.head_dim, c.rotated, c.mean);
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i)
    expect_same(found[i], wanted[i], "output");
  expect_same(d_joined, ops::composed::split_heads_backward(grads, cos, sin, c.rotated, c.mean),
              "gradient");
}

TEST(HeadSplitThreads, DoWhatTheCompositionDoes) {
  check({2, 5, 12, 2, 64, 6, 3, true, false});
  check({2, 5, 12, 2, 64, 6, 2, true, true});
  check({1, 7, 12, 2, 64, 2, 1, false, false});
  check({3, 4, 8, 4, 32, 4, 2, true, false});
  check({1, 3, 4, 1, 128, 6, 6, true, false});
  check({1, 3, 16, 2, 16, 1, 0, false, false});
}

} // namespace
} // namespace nsa::kernels
