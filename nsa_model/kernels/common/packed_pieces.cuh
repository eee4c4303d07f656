#pragma once
// Steps and pieces of packed partial results (packed_slots.h). It is host code too, so that tests
// can run it.
//
// Zeros stay zeros. A row with an infinity or a NaN becomes infinite or NaN as a whole, so
// divergence is not hidden.

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "nsa_model/kernels/common/packed_slots.h"

namespace nsa::kernels {

// ---- bits ---------------------------------------------------------------------------------------

// (bits & mask) | value, in one instruction. The compiler emits two if both are constants.
__host__ __device__ __forceinline__ uint32_t masked_or(uint32_t bits, uint32_t mask,
                                                       uint32_t value) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(bits), "r"(mask), "r"(value));
  return result;
#else
  return (bits & mask) | value;
#endif
}
// The bits of `other` where mask has ones, else those of `bits`, in one instruction too.
__host__ __device__ __forceinline__ uint32_t merged(uint32_t bits, uint32_t other, uint32_t mask) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xD8;" : "=r"(result) : "r"(bits), "r"(other), "r"(mask));
  return result;
#else
  return (bits & ~mask) | (other & mask);
#endif
}

// ---- steps -------------------------------------------------------------------------------------

// Returns the larger magnitude; NaN if one of them is.
__host__ __device__ __forceinline__ float larger_magnitude(float a, float b) {
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
  return larger;
#else
  return 0.0f;
#endif
#else
  a = std::fabs(a);
  b = std::fabs(b);
  return a > b || std::isnan(a) ? a : b;
#endif
}

// Bits of the step for a row with this largest magnitude: at least 1/511 of it, with two bits after
// the leading one.
__host__ __device__ __forceinline__ uint32_t row_step(float largest) {
  constexpr uint32_t kBelow = (1u << 21) - 1;
  const uint32_t exact = __builtin_bit_cast(uint32_t, largest * (1.0f / 511.0f));
  constexpr uint32_t kLeast = 0x00800000u; // 2^-126
  constexpr uint32_t kMost = 0x7FE00000u;  // of a NaN
  return std::min(std::max(exact + kBelow, kLeast), kMost) & ~kBelow;
}
// Stores the step's fraction in the low bits of the log-sum. step_of() restores the step.
__host__ __device__ __forceinline__ float with_fraction(float lse, uint32_t step) {
  return __builtin_bit_cast(float, merged(__builtin_bit_cast(uint32_t, lse), step >> 21, 3u));
}
__host__ __device__ __forceinline__ float step_of(float lse, uint8_t exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(exponent) << 23 |
                                       (__builtin_bit_cast(uint32_t, lse) & 3u) << 21);
}

// ---- pieces ------------------------------------------------------------------------------------

struct PackedPiece {
  uint4 words;
  uint32_t last_word;
};

// Rounds value(i) * reciprocal_step to the nearest integer. It must lie in [-511, 511].
template <typename Value>
__host__ __device__ __forceinline__ PackedPiece pack_piece(Value value, float reciprocal_step) {
  // In [2^23, 2^24) the last bit of a float has weight 1. So an addition rounds, and the low bits
  // are the integer, below those of the exponent. A shift by 10 or 20 moves the exponent out of the
  // word. The offset of each word's second number is chosen so that the exponent of the first
  // cancels too.
  constexpr float kOffset = 8388608.0f + 512.0f;
  constexpr float kSecondOffset = kOffset + 2965504.0f; // 0x4B000000 + (2965504 << 10) == 0
  const auto number = [&](int i, float offset) {
    return __builtin_bit_cast(uint32_t, fmaf(value(i), reciprocal_step, offset));
  };
  const uint32_t spread = number(kPieceValues - 1, kOffset);
  uint32_t words[kPieceWords];
#pragma unroll
  for (int k = 0; k < kPieceWords; ++k) {
    const uint32_t upper = (number(3 * k + 2, kOffset) << 10) + number(3 * k + 1, kSecondOffset);
    words[k] = (upper << 10) + number(3 * k, kOffset);
    // The last word's two bits are all that such a shift leaves.
    words[k] = k == kPieceWords - 1 ? (spread << 30) + words[k]
                                    : masked_or(spread << (22 + 2 * k), 0xC0000000u, words[k]);
  }
  return {{words[0], words[1], words[2], words[3]}, words[4]};
}

// Turns a piece into that of a row with one key, which is stored without a step. In a sum it then
// counts as zero.
__host__ __device__ __forceinline__ void keep_key(PackedPiece& piece, uint32_t& step, int key) {
  piece.last_word = static_cast<uint32_t>(key);
  step = 0;
}

// Sums of weighted pieces: call add() for each with weight times step, then value(i).
struct PieceSum {
  float values[kPieceValues] = {};
  float weights = 0.0f;

  __host__ __device__ __forceinline__ void add(const PackedPiece& piece, float weighted_step) {
    // With these bits, a number n in the middle of the fraction is the float 8 + n / 1024.
    constexpr uint32_t kEight = 0x41000000u;
    constexpr uint32_t kMiddle = 0x000FFC00u;
    const uint32_t words[kPieceWords] = {piece.words.x, piece.words.y, piece.words.z, piece.words.w,
                                         piece.last_word};
    uint32_t spread = 0;
#pragma unroll
    for (int k = 0; k < kPieceWords; ++k) {
      add_bits(3 * k, masked_or(words[k] << 10, kMiddle, kEight), weighted_step);
      add_bits(3 * k + 1, masked_or(words[k], kMiddle, kEight), weighted_step);
      add_bits(3 * k + 2, masked_or(words[k] >> 10, kMiddle, kEight), weighted_step);
      spread = spread << 2 | words[k] >> 30;
    }
    add_bits(kPieceValues - 1, spread << 10 | kEight, weighted_step);
    weights += weighted_step;
  }
  // Adds value i of a row with one key.
  __host__ __device__ __forceinline__ void add_value(int i, float value, float weight) {
    values[i] = fmaf(weight, value * (1.0f / 1024.0f), values[i]);
  }
  // The excess in every sum: 512 of 1024 steps, and 8. It stays finite if the sums are infinite.
  __host__ __device__ __forceinline__ float excess() const {
    return fminf(8.5f * weights, FLT_MAX);
  }
  // Returns sum i times factor; `excess` is excess().
  __host__ __device__ __forceinline__ float value(int i, float excess, float factor) const {
    return (values[i] - excess) * (1024.0f * factor);
  }

private:
  __host__ __device__ __forceinline__ void add_bits(int i, uint32_t bits, float weight) {
    values[i] = fmaf(weight, __builtin_bit_cast(float, bits), values[i]);
  }
};

} // namespace nsa::kernels
