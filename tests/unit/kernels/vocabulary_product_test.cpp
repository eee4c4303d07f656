// The arithmetic of the output layer's product (vocabulary_product/) beside its products, and the
// order of its tiles. Device code runs on the CPU here, lane by lane.
#include "nsa_model/kernels/vocabulary_product/config.h"
#include "nsa_model/kernels/vocabulary_product/exponents.cuh"
#include "nsa_model/kernels/vocabulary_product/rows.cuh"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace nsa::kernels::vocabulary_product {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kRounding = 0x1p-8; // of a value to BF16

// Whole vectors of BF16, aligned.
struct alignas(kVectorBytes) Vectors {
  std::array<__nv_bfloat16, 768> values = {};
  __nv_bfloat16* data() { return values.data(); }
  double at(int i) const {
    return static_cast<double>(__bfloat162float(values[static_cast<std::size_t>(i)]));
  }
};
Vectors random_vectors(uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  Vectors result;
  for (__nv_bfloat16& value : result.values)
    value = __float2bfloat16_rn(normal(generator));
  return result;
}

std::pair<float, float> halves(uint32_t word) { // BF16 as FP32
  return {__builtin_bit_cast(float, word << 16), __builtin_bit_cast(float, word & 0xFFFF0000u)};
}

TEST(VocabularyProduct, ExponentialsHaveTheErrorsOfElevenBits) {
  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  for (const float deviation : {0.01f, 1.0f, 10.0f, 30.0f})
    for (int i = 0; i < 20000; ++i) {
      const float low = std::min(deviation * normal(generator), kLargestExponent),
                  high = std::min(deviation * normal(generator), kLargestExponent);
      float sum = 0.0f;
      const auto [first, second] = halves(exponentials_of_pair(pack_exponents(low, high), sum));
      const auto change = [](float exponent) {
        return std::exp2(0x1p-11 * std::abs(double{exponent}) + 1e-6) - 1.0;
      };
      const double wanted_low = std::exp2(double{low}), wanted_high = std::exp2(double{high});
      const double low_limit = wanted_low * change(low), high_limit = wanted_high * change(high);
      ASSERT_NEAR(first, wanted_low, low_limit + kRounding * (wanted_low + low_limit)) << low;
      ASSERT_NEAR(second, wanted_high, high_limit + kRounding * (wanted_high + high_limit)) << high;
      // The sum has them as they were before they became BF16.
      ASSERT_NEAR(sum, wanted_low + wanted_high, low_limit + high_limit + 1e-6 * double{sum});
    }
}

TEST(VocabularyProduct, ExponentialsAreBoundedAndKeepNaN) {
  const auto of = [](float low, float high) {
    float sum = 0.0f;
    const auto pair = halves(exponentials_of_pair(pack_exponents(low, high), sum));
    return std::array<float, 3>{pair.first, pair.second, sum};
  };
  const float largest = std::exp2(kLargestExponent);
  EXPECT_EQ(of(0.0f, -0.0f), (std::array{1.0f, 1.0f, 2.0f}));
  EXPECT_EQ(of(101.0f, 1e30f), (std::array{largest, largest, 2 * largest})); // 1e30 is beyond FP16
  EXPECT_EQ(of(kInfinity, 100.0f), (std::array{largest, largest, 2 * largest}));
  EXPECT_EQ(of(-kInfinity, -1e30f), (std::array{0.0f, 0.0f, 0.0f}));
  const auto [low, high, sum] = of(NAN, 3.0f);
  EXPECT_TRUE(std::isnan(low) && std::isnan(sum));
  EXPECT_EQ(high, 8.0f);
  EXPECT_TRUE(std::isnan(of(-1.0f, -NAN)[1]));
}

TEST(VocabularyProduct, ALabelIsLeftOutOfAVector) {
  for (int index = -3; index < kVectorValues + 3; ++index) {
    const uint32_t word = pack_exponents(1.0f, 1.0f);
    uint4 exponents = {word, word, word, word};
    leave_out(exponents, index);
    float sum = 0.0f;
    const Eight values = unpack(exponentials(exponents, sum));
    for (int i = 0; i < kVectorValues; ++i)
      EXPECT_EQ(values.values[i], i == index ? 0.0f : 2.0f) << index;
    EXPECT_EQ(sum, index >= 0 && index < kVectorValues ? 14.0f : 16.0f);
  }
}

TEST(VocabularyProduct, RowsHaveTheLossAndTheGradient) {
  for (const double others : {0.0, 1e-9, 1e-4, 1.0, 5e4, 1e12, 0x1p100}) {
    const RowResult row = row_result(static_cast<float>(others), 0.25f, true);
    const double p = 1.0 / (1.0 + others);
    EXPECT_NEAR(row.loss, 0.25 * std::log1p(others), 1e-6 * 0.25 * std::log1p(others)) << others;
    EXPECT_NEAR(row.factor, 0.25 * p, 1e-6 * 0.25 * p) << others;
    EXPECT_NEAR(row.label_factor, -0.25 * others * p, 1e-6 * 0.25 * others * p) << others;
  }
  const RowResult without_weight = row_result(7.0f, 0.0f, true);
  EXPECT_EQ(without_weight.loss, 0.0f);
  EXPECT_EQ(without_weight.factor, 0.0f);
  EXPECT_EQ(without_weight.label_factor, 0.0f);
  const RowResult unknown = row_result(7.0f, 0.25f, false);
  EXPECT_TRUE(std::isnan(unknown.loss));
  EXPECT_EQ(unknown.factor, 0.0f);
  EXPECT_EQ(unknown.label_factor, 0.0f);
  EXPECT_TRUE(is_known(0, 5) && is_known(4, 5));
  EXPECT_FALSE(is_known(5, 5) || is_known(-1, 5) || is_known(int64_t{1} << 32, 5));
}

TEST(VocabularyProduct, LanesOfAWarpShareADotProduct) {
  const Vectors a = random_vectors(1), b = random_vectors(2);
  for (const int inner : {64, 192, 768}) {
    double sum = 0.0, wanted = 0.0;
    for (int lane = 0; lane < kWarpThreads; ++lane)
      sum += double{part_of_dot(a.values.data(), b.values.data(), inner, lane)};
    for (int i = 0; i < inner; ++i)
      wanted += a.at(i) * b.at(i);
    EXPECT_NEAR(sum, wanted, 1e-4) << inner;
  }
}

TEST(VocabularyProduct, GradientsOfHiddenRowsGetTheLabelsRow) {
  const Vectors row = random_vectors(3), label_row = random_vectors(4);
  alignas(kVectorBytes) std::array<float, kVectorValues> product;
  for (int i = 0; i < kVectorValues; ++i)
    product[static_cast<std::size_t>(i)] = static_cast<float>(label_row.at(i + 100));
  Vectors scaled, sum, without;
  scale_vector(scaled.data(), row.values.data(), 0.3f);
  add_label_row(sum.data(), product.data(), 0.3f, label_row.values.data(), -0.7f);
  add_label_row(without.data(), product.data(), 0.3f, nullptr, -0.7f);
  for (int i = 0; i < kVectorValues; ++i) {
    const double of_product = 0.3 * double{product[static_cast<std::size_t>(i)]};
    const double all = of_product - 0.7 * label_row.at(i);
    EXPECT_NEAR(scaled.at(i), 0.3 * row.at(i), kRounding * std::abs(0.3 * row.at(i)) + 1e-6);
    EXPECT_NEAR(sum.at(i), all, kRounding * std::abs(all) + 1e-6);
    EXPECT_NEAR(without.at(i), of_product, kRounding * std::abs(of_product) + 1e-6);
  }
}

TEST(VocabularyProduct, PiecesCoverTheProductOnceAndRowsFirst) {
  constexpr std::pair<int, int> kSizes[] = {{1, 128}, {256, 256}, {300, 50304}, {4096, 50304}};
  for (const auto& [rows, columns] : kSizes) {
    const Grid grid = grid_of(rows, columns);
    EXPECT_GE(grid.padded_rows(), rows);
    EXPECT_LT(grid.padded_rows(), rows + kPieceRows);
    std::set<std::pair<int, int>> seen;
    int column_before = 0;
    for (int i = 0; i < grid.count(); ++i) {
      const Piece piece = grid.piece(i);
      EXPECT_EQ(piece.row % kPieceRows, 0);
      EXPECT_EQ(piece.column % kPieceColumns, 0);
      EXPECT_LT(piece.row, rows);
      EXPECT_LE(piece.column + kHalfColumns, columns); // at least half of it is inside
      EXPECT_FALSE(piece.narrow);
      EXPECT_GE(piece.column, column_before);
      column_before = piece.column;
      seen.emplace(piece.row, piece.column);
    }
    const auto wanted = static_cast<std::size_t>(pieces(rows, kPieceRows)) *
                        static_cast<std::size_t>(pieces(columns, kPieceColumns));
    EXPECT_EQ(seen.size(), wanted);
  }
}

} // namespace
} // namespace nsa::kernels::vocabulary_product
