// Partial results with 10 bits per value. What is written is read again with the error that the
// design promises, for any values. The arithmetic of every thread runs on the CPU here.
#include "nsa_model/kernels/common/packed_pieces.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace nsa::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Row = std::array<float, kHeadDim>;

uint32_t bf16_bits(float value) { // rounded to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
  return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
float from_bf16(uint32_t bits) {
  return __builtin_bit_cast(float, bits << 16);
}

// Writes and reads a row. It is the only slot of a token and has weight 1.
Row through_out(const Row& row, float inverse = 1.0f) {
  float largest = 0.0f;
  for (const float value : row)
    largest = larger_magnitude(largest, value);
  const uint32_t step = row_step(largest * inverse);
  const float joined = with_fraction(3.25f, step);
  EXPECT_NEAR(joined, 3.25f, 1e-6f);
  const float read = step_of(joined, static_cast<uint8_t>(step >> 23));
  EXPECT_EQ(__builtin_bit_cast(uint32_t, read), step);
  Row result;
  for (int quad = 0; quad < kRowPieces; ++quad) {
    const auto dim = [&](int i) { return static_cast<std::size_t>(i / 2 * 8 + 2 * quad + i % 2); };
    const PackedPiece piece =
        pack_piece([&](int i) { return row[dim(i)]; }, inverse * (1.0f / read));
    PieceSum sum;
    sum.add(piece, read);
    for (int i = 0; i < kPieceValues; ++i)
      result[dim(i)] = sum.value(i, sum.excess(), 1.0f);
  }
  return result;
}

Row through_bf16(const Row& row) {
  Row result;
  std::transform(row.begin(), row.end(), result.begin(),
                 [](float value) { return from_bf16(bf16_bits(value)); });
  return result;
}

using Draw = std::function<float(std::mt19937&, std::size_t dim)>;
// Returns ||read - written|| / ||written|| over many rows.
double relative_error(const std::function<Row(const Row&)>& through, const Draw& draw) {
  std::mt19937 random(7);
  double difference = 0.0;
  double norm = 0.0;
  for (int i = 0; i < 1000; ++i) {
    Row row;
    for (std::size_t dim = 0; dim < kHeadDim; ++dim)
      row[dim] = draw(random, dim);
    const Row read = through(row);
    for (std::size_t dim = 0; dim < kHeadDim; ++dim) {
      difference += std::pow(static_cast<double>(read[dim]) - static_cast<double>(row[dim]), 2);
      norm += std::pow(static_cast<double>(row[dim]), 2);
    }
  }
  return std::sqrt(difference / norm);
}
float normal(std::mt19937& random, std::size_t /*dim*/) {
  return std::normal_distribution<float>()(random);
}

double out_error(const Draw& draw) {
  return relative_error([](const Row& row) { return through_out(row); }, draw);
}

// Compares errors with those of BF16. The checks of whole kernels allow 0.5 % for outputs and 1 %
// for gradients.
TEST(PackedPieces, NormalValuesLoseNoMoreThanInBf16) {
  EXPECT_NEAR(relative_error(through_bf16, normal), 0.00166, 0.00002);
  EXPECT_LT(out_error(normal), 0.00166);
}

TEST(PackedPieces, UnequalValuesStayBelowTheLimits) {
  // Standard deviations from 1 to 8.
  const Draw unequal = [](std::mt19937& random, std::size_t dim) {
    return normal(random, dim) * std::exp2(static_cast<float>(dim * 37 % 64) / 21.0f);
  };
  const Draw heavy = [](std::mt19937& random, std::size_t /*dim*/) {
    return std::student_t_distribution<float>(3.0f)(random);
  };
  const Draw one_outlier = [](std::mt19937& random, std::size_t dim) {
    return normal(random, dim) * (dim == 5 ? 30.0f : 1.0f);
  };
  EXPECT_LT(out_error(unequal), 0.0024);
  EXPECT_LT(out_error(heavy), 0.0032);
  // The row has one step, so all 64 values lose precision.
  EXPECT_LT(out_error(one_outlier), 0.0050);
}

// The error of each value is at most half a step, however the sizes in a row are distributed.
TEST(PackedPieces, NoValueIsOffByMoreThanHalfAStep) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-40.0f, 40.0f);
  for (int i = 0; i < 500; ++i) {
    const float scale = std::exp2(exponent(random));
    const float inverse = std::exp2(exponent(random) / 8.0f);
    Row row;
    for (std::size_t dim = 0; dim < kHeadDim; ++dim)
      row[dim] = normal(random, dim) * scale * std::exp2(exponent(random) / 4.0f);
    float largest = 0.0f;
    for (const float value : row)
      largest = std::max(largest, std::fabs(value) * inverse);
    const Row out = through_out(row, inverse);
    for (std::size_t dim = 0; dim < kHeadDim; ++dim) // a step is at most 5 / 4 of largest / 511
      ASSERT_LE(std::fabs(out[dim] - row[dim] * inverse), largest * 1.26f / 511.0f / 2.0f);
  }
}

TEST(PackedPieces, EveryNumberComesBack) {
  for (int first = -511; first <= 511; ++first) {
    std::array<float, kPieceValues> numbers;
    for (int i = 0; i < kPieceValues; ++i)
      numbers[static_cast<std::size_t>(i)] =
          static_cast<float>((first + 511 + 61 * i) % 1023 - 511);
    PieceSum sum;
    sum.add(pack_piece([&](int i) { return numbers[static_cast<std::size_t>(i)]; }, 1.0f), 1.0f);
    for (int i = 0; i < kPieceValues; ++i)
      ASSERT_EQ(sum.value(i, sum.excess(), 1.0f), numbers[static_cast<std::size_t>(i)]) << i;
  }
}

TEST(PackedPieces, ZerosStayZerosAndExtremesStayFinite) {
  const Row zeros = {};
  EXPECT_EQ(through_out(zeros), zeros);
  Row row;
  for (const float size : {1e-45f, 1e-38f, 1e-30f, 1.0f, 1e30f, 3.3e38f}) {
    for (std::size_t dim = 0; dim < kHeadDim; ++dim)
      row[dim] = dim % 3 == 0 ? size : -size / static_cast<float>(dim);
    const Row out = through_out(row);
    for (std::size_t dim = 0; dim < kHeadDim; ++dim) {
      const float limit = size / 256.0f + 1e-38f; // below that, steps do not become smaller
      EXPECT_NEAR(out[dim], row[dim], limit) << size;
    }
  }
}

// A row with a single key names the key in every piece, and does not count in sums of steps.
TEST(PackedPieces, AKeyIsNoNumber) {
  for (int key = 0; key < kBlock; ++key) {
    uint32_t step = row_step(3.0f);
    PackedPiece piece = pack_piece([](int i) { return static_cast<float>(i); }, 1.0f);
    keep_key(piece, step, key);
    EXPECT_EQ(piece.last_word, static_cast<uint32_t>(key));
    EXPECT_EQ(step_of(with_fraction(-7.5f, step), static_cast<uint8_t>(step >> 23)), 0.0f);
    PieceSum sum;
    sum.add(pack_piece([](int i) { return static_cast<float>(i); }, 1.0f), 0.25f);
    sum.add(piece, 0.0f);
    sum.add_value(3, 8.0f, 0.5f);
    for (int i = 0; i < kPieceValues; ++i)
      EXPECT_EQ(sum.value(i, sum.excess(), 1.0f), 0.25f * static_cast<float>(i) + (i == 3 ? 4 : 0));
  }
}

// A value that is not finite must not become a finite number.
TEST(PackedPieces, InfinitiesAndNansDoNotBecomeNumbers) {
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    Row row = {};
    row[21] = bad;
    row[22] = 1.0f;
    const Row out = through_out(row);
    for (std::size_t dim = 0; dim < kHeadDim; ++dim) {
      EXPECT_FALSE(std::isfinite(out[dim]));
      // Infinite values must not become NaN.
      if (!std::isnan(bad)) {
        EXPECT_FALSE(std::isnan(out[dim]));
      }
    }
  }
}

// 16 slots with weights of very different sizes. The error of a sum comes only from its parts.
TEST(PackedPieces, SumsOfSlotsAreExactButForTheSteps) {
  std::mt19937 random(11);
  double difference = 0.0;
  double allowed = 0.0;
  for (int i = 0; i < 500; ++i) {
    PieceSum sum;
    std::array<double, kPieceValues> exact = {};
    std::array<double, kPieceValues> stepped = {};
    for (int slot = 0; slot < kSlots; ++slot) {
      std::array<float, kPieceValues> values;
      float largest = 0.0f;
      for (float& value : values) {
        value = normal(random, 0);
        largest = larger_magnitude(largest, value);
      }
      const float step = __builtin_bit_cast(float, row_step(largest));
      const float weight = std::exp2(4.0f * normal(random, 0));
      sum.add(pack_piece([&](int v) { return values[static_cast<std::size_t>(v)]; }, 1.0f / step),
              weight * step);
      for (std::size_t v = 0; v < kPieceValues; ++v) {
        exact[v] += static_cast<double>(weight) * static_cast<double>(values[v]);
        stepped[v] += static_cast<double>(weight) * static_cast<double>(step) *
                      std::nearbyint(static_cast<double>(values[v] / step));
      }
    }
    for (std::size_t v = 0; v < kPieceValues; ++v) {
      const auto value = static_cast<double>(sum.value(static_cast<int>(v), sum.excess(), 1.0f));
      difference += std::pow(value - exact[v], 2);
      allowed += std::pow(stepped[v] - exact[v], 2);
    }
  }
  EXPECT_LT(difference, 1.01 * allowed);
}

} // namespace
} // namespace nsa::kernels
