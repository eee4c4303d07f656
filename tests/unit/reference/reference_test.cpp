// Compares the oracle with hand-computed cases and with finite differences. The oracle judges other
// code, so it must be tested itself.
#include "nsa_model/reference/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace nsa::reference {
namespace {

constexpr Sizes kSmall{8, 4, 16, 4, 12};

Array random_array(size_t count, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Array values(count);
  for (double& value : values)
    value = normal(engine);
  return values;
}

Inputs random_inputs(const Shape& shape, const Sizes& sizes, unsigned seed) {
  Inputs in;
  const int64_t row = shape.groups * shape.head_dimension;
  const int64_t keys[3] = {compressed_count(shape.sequence, sizes), shape.sequence, shape.sequence};
  in.q = random_array(shape.batch * shape.sequence * shape.heads * shape.head_dimension, seed);
  in.gates = random_array(shape.batch * shape.sequence * shape.heads * 3, seed + 1);
  for (int branch = 0; branch < 3; ++branch) {
    in.k[branch] = random_array(shape.batch * keys[branch] * row, seed + 2 + branch);
    in.v[branch] = random_array(shape.batch * keys[branch] * row, seed + 5 + branch);
  }
  return in;
}

TEST(Grid, CountsAtTheirEdges) {
  const Sizes paper;
  EXPECT_EQ(compressed_count(31, paper), 0);
  EXPECT_EQ(compressed_count(32, paper), 1);
  EXPECT_EQ(compressed_count(47, paper), 1);
  EXPECT_EQ(compressed_count(48, paper), 2);
  EXPECT_EQ(block_count(1, paper), 1);
  EXPECT_EQ(block_count(64, paper), 1);
  EXPECT_EQ(block_count(65, paper), 2);
}

TEST(Grid, Equation9SharesStrides) {
  const Sizes paper;
  const int64_t expected[] = {0, 1, 2, 2, 2, 1, 0};
  for (int64_t tap = -2; tap <= 4; ++tap)
    EXPECT_EQ(shared_strides(4 * 3 + tap, 3, paper), expected[tap + 2]) << tap;
  // Counted from the tokens themselves, for other sizes.
  for (const Sizes sizes : {Sizes{8, 4, 16}, Sizes{12, 4, 8}, Sizes{6, 3, 3}, Sizes{4, 4, 4}})
    for (int64_t i = 0; i < 12; ++i)
      for (int64_t b = 0; b < 8; ++b) {
        int64_t shared = 0;
        for (int64_t t = 0; t < 200; ++t)
          shared += t / sizes.selection_block == b && t >= i * sizes.compression_stride &&
                    t < i * sizes.compression_stride + sizes.compression_block;
        EXPECT_EQ(shared_strides(i, b, sizes), shared / sizes.compression_stride) << i << ' ' << b;
      }
}

TEST(Grid, DocumentsShareTheCompressedRoomOfARow) {
  const std::vector<int64_t> start = {0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
                                      10, 11, 11, 11, 11, 11, 11, 11, 11, 11};
  const auto documents = documents_of_row(start, 20, kSmall);
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(documents[0], (Document{0, 10, 0}));
  EXPECT_EQ(documents[1], (Document{10, 11, 1}));
  EXPECT_EQ(documents[2], (Document{11, 20, 1}));
}

TEST(Selection, ForcedBlocksCountAndTiesGoLow) {
  const Array equal(10, 1.0);
  EXPECT_EQ(select_blocks(equal, 9 * 16, kSmall), (std::vector<int32_t>{0, 1, 8, 9}));
  Array scores = equal;
  scores[5] = 1.5;
  EXPECT_EQ(select_blocks(scores, 9 * 16 + 3, kSmall), (std::vector<int32_t>{0, 5, 8, 9}));
  EXPECT_EQ(select_blocks(Array(3, 0.0), 2 * 16 + 1, kSmall), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(select_blocks(Array(1, 0.0), 0, kSmall), (std::vector<int32_t>{0}));
}

TEST(Attend, FirstTokensSeeNoCompressedToken) {
  const Shape shape{1, 9, 2, 1, 4};
  const Outputs out = attend(shape, kSmall, random_inputs(shape, kSmall, 1));
  for (int64_t t = 0; t < 9; ++t)
    for (int64_t h = 0; h < 2; ++h) {
      const bool sees = t >= 7;
      EXPECT_EQ(std::isinf(out.branch_lse[0][t * 2 + h]), !sees) << t;
      if (!sees) {
        EXPECT_EQ(out.branch_o[0][(t * 2 + h) * 4], 0.0);
      }
    }
}

// The softmax over one key is 1, and over two equal keys 1/2, so these values can be computed by
// hand.
TEST(Attend, HandWorkedValues) {
  const Shape shape{1, 2, 1, 1, 2};
  Inputs in = random_inputs(shape, kSmall, 3);
  in.q = {1, 0, 2, 0};
  for (int branch = 1; branch < 3; ++branch) {
    in.k[branch] = {1, 0, 1, 0};
    in.v[branch] = {3, 5, 1, 1};
  }
  in.gates = {9, 1, 10, 9, 1, 10};
  const Outputs out = attend(shape, kSmall, in);
  EXPECT_NEAR(out.branch_o[1][2], 2.0, 1e-12);
  EXPECT_NEAR(out.branch_o[2][3], 3.0, 1e-12);
  EXPECT_NEAR(out.branch_lse[2][1], 2.0 / std::sqrt(2.0) + std::log(2.0), 1e-12);
  // The compressed branch is empty, so its gate has no effect.
  EXPECT_NEAR(out.o[2], 11 * 2.0, 1e-12);
}

TEST(Attend, GradientsAgreeWithFiniteDifferences) {
  const Shape shape{2, 41, 4, 2, 4};
  const Sizes sizes{4, 2, 4, 4, 6};
  Inputs in = random_inputs(shape, sizes, 11);
  in.document_start.assign(2 * 41, 0);
  for (int64_t t = 7; t < 41; ++t)
    in.document_start[t] = 7; // row 0: documents of 7 and 34 tokens
  const Outputs out = attend(shape, sizes, in);
  in.indices = out.indices; // no gradient flows through the selection
  const Array direction = random_array(out.o.size(), 12);
  const Gradients grad = attend_backward(shape, sizes, in, out, direction);
  const auto objective = [&](const Inputs& at) {
    const Outputs o = attend(shape, sizes, at);
    double sum = 0;
    for (size_t i = 0; i < o.o.size(); ++i)
      sum += direction[i] * o.o[i];
    return sum;
  };
  const auto check = [&](Array& x, const Array& gradient, const char* name) {
    const Array step = random_array(x.size(), 13);
    const Array before = x;
    double expected = 0;
    for (size_t i = 0; i < x.size(); ++i)
      expected += gradient[i] * step[i];
    const double h = 1e-6;
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = before[i] + h * step[i];
    const double above = objective(in);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = before[i] - h * step[i];
    const double below = objective(in);
    x = before;
    EXPECT_NEAR((above - below) / (2 * h), expected, 1e-6 * (1 + std::abs(expected))) << name;
  };
  check(in.q, grad.q, "q");
  check(in.gates, grad.gates, "gates");
  for (int branch = 0; branch < 3; ++branch) {
    check(in.k[branch], grad.k[branch], "k");
    check(in.v[branch], grad.v[branch], "v");
  }
}

TEST(Pool, MeansOfWholeBlocksOnlyAndItsTranspose) {
  const Shape shape{1, 14, 1, 1, 1};
  Array x(14);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = double(i);
  EXPECT_EQ(pool(shape, kSmall, x, {}), (Array{3.5, 7.5}));
  const Array y = random_array(2, 5);
  const Array back = pool_backward(shape, kSmall, y, {});
  double left = 3.5 * y[0] + 7.5 * y[1], right = 0;
  for (size_t i = 0; i < x.size(); ++i)
    right += back[i] * x[i];
  EXPECT_NEAR(left, right, 1e-12);
  EXPECT_EQ(back[12], 0.0);
}

} // namespace
} // namespace nsa::reference
