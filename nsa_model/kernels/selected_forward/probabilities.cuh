#pragma once
// The softmax of the selected branch's forward. Probabilities of a block are computed without a
// maximum, which almost no row needs; other rows get an offset. Device code only.

#include <cmath>

#include "nsa_model/kernels/common/quad.cuh"
#include "nsa_model/kernels/selected_forward/config.h"

namespace nsa::kernels::selected_forward {

#if NSA_HOPPER_CODE

// Values of a lane: 64 x 64 scores, the output followed by its rows' sums (multiply_and_sum), and
// probabilities as an operand, two to a word.
inline constexpr int kScores = kLaneFloats<Tile::kKeys>;
template <int kDim>
// Index of the first row's sum; that of the second is two higher.
inline constexpr int kSumOf = kLaneFloats<kDim>;
template <int kDim> inline constexpr int kOutAndSumsOf = kLaneFloats<kDim + Tile::kOnesColumns>;
inline constexpr int kOutAndSums = kOutAndSumsOf<kHeadDim>;
inline constexpr int kSum = kSumOf<kHeadDim>;
inline constexpr int kOperands = kScores / 2;

// Probabilities of a block before they are divided by their sum, 2^(score - offset). They are BF16,
// in the layout of the operand of the product with V, for a lane's rows r = 0 and 1.
struct Probabilities {
  uint32_t operand[kOperands]; // words 2j + r
  float offset[2];             // see needs_offset
  // Bits of a float that is at least the largest of a lane's 16 and less than the next larger BF16.
  uint32_t largest[2];
};

__device__ __forceinline__ uint32_t largest_of(const uint32_t (&operand)[kOperands], int r) {
  // Values have no sign, so their bits order like integers.
  const uint32_t first = __vimax3_u16x2(operand[r], operand[2 + r], operand[4 + r]);
  const uint32_t second = __vimax3_u16x2(operand[6 + r], operand[8 + r], operand[10 + r]);
  const uint32_t both = __vmaxu2(__vimax3_u16x2(operand[12 + r], operand[14 + r], first), second);
  return max(both, both << 16);
}

// If a row's largest probability without an offset is this far from 1, the row takes its largest
// score as the offset. The other rows are as exact without, and nothing waits for their maximum.
// The decision depends only on the row's own scores.
inline constexpr uint32_t kLeast = (127 - 40) << 23;
inline constexpr uint32_t kMost = (127 + 40) << 23;
__device__ __forceinline__ bool needs_offset(uint32_t largest) {
  return largest - kLeast > kMost - kLeast;
}

__device__ __forceinline__ float peak_of_row(const float (&scores)[kScores], int r) {
  float peak = fmaxf(scores[2 * r], scores[2 * r + 1]);
#pragma unroll
  for (int j = 1; j < kScores / kGroupFloats; ++j)
    peak =
        fmaxf(peak, fmaxf(scores[kGroupFloats * j + 2 * r], scores[kGroupFloats * j + 2 * r + 1]));
  return largest_of_quad(peak);
}

// Rescales rows whose largest score would overflow or underflow. Rare: only if the largest
// probability leaves [2^-40, 2^40]. All four lanes of a row call it.
__device__ __forceinline__ void take_offsets(Probabilities& p, const float (&scores)[kScores],
                                             float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t largest = largest_of_quad(p.largest[r]);
    const float offset = peak_of_row(scores, r) * scale_log2;
    if (!needs_offset(largest)) continue;
    p.offset[r] = offset;
#pragma unroll
    for (int j = 0; j < kScores / kGroupFloats; ++j) {
      p.operand[2 * j + r] = pack_bf16(
          exp2_approximate(fmaf(scores[kGroupFloats * j + 2 * r], scale_log2, -offset)),
          exp2_approximate(fmaf(scores[kGroupFloats * j + 2 * r + 1], scale_log2, -offset)));
    }
    p.largest[r] = largest_of(p.operand, r);
  }
}

// Computes probabilities from unscaled scores.
__device__ __forceinline__ void make_probabilities(Probabilities& p, const float (&scores)[kScores],
                                                   float scale_log2) {
#pragma unroll
  for (int i = 0; i < kOperands; ++i) {
    p.operand[i] = pack_bf16(exp2_approximate(scores[2 * i] * scale_log2),
                             exp2_approximate(scores[2 * i + 1] * scale_log2));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    p.offset[r] = 0.0f;
    p.largest[r] = largest_of(p.operand, r);
  }
  // Whether a row needs_offset(), in one instruction fewer than two tests
  if (__any_sync(~0u, max(p.largest[0] - kLeast, p.largest[1] - kLeast) > kMost - kLeast))
    take_offsets(p, scores, scale_log2);
}

// Computes the probabilities of a later part of a joined unit; `out` and `of_one` come from the
// earlier parts. A row takes another offset if its probabilities have grown by more than 2^40. Its
// earlier results are then rescaled.
__device__ __forceinline__ void
make_later_probabilities(Probabilities& p, const float (&scores)[kScores], float scale_log2,
                         float (&out)[kOutAndSums], float (&of_one)[2]) {
  const auto make = [&](int r) {
#pragma unroll
    for (int j = 0; j < kScores / kGroupFloats; ++j) {
      p.operand[2 * j + r] = pack_bf16(
          exp2_approximate(fmaf(scores[kGroupFloats * j + 2 * r], scale_log2, -p.offset[r])),
          exp2_approximate(fmaf(scores[kGroupFloats * j + 2 * r + 1], scale_log2, -p.offset[r])));
    }
    p.largest[r] = largest_of(p.operand, r);
  };
  make(0);
  make(1);
  if (!__any_sync(~0u, max(p.largest[0], p.largest[1]) > kMost)) return; // the usual case
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool grown = largest_of_quad(p.largest[r]) > kMost;
    const float offset = peak_of_row(scores, r) * scale_log2;
    const float factor = grown ? exp2_approximate(p.offset[r] - offset) : 1.0f;
#pragma unroll
    for (int j = 0; j < kOutAndSums / kGroupFloats; ++j) {
      out[kGroupFloats * j + 2 * r] *= factor;
      out[kGroupFloats * j + 2 * r + 1] *= factor;
    }
    of_one[r] *= factor;
    p.offset[r] = grown ? offset : p.offset[r];
    make(r);
  }
}

// Returns the key of row r (of a lane's two) whose probability is above `bound`, at least half of
// all; -1 if there is none. All four lanes of the row call it.
__device__ __forceinline__ int only_key(const uint32_t (&probabilities)[kOperands], int r, int quad,
                                        uint32_t bound) {
  int key = -1;
#pragma unroll
  for (int j = 0; j < kScores / kGroupFloats; ++j) {
    const uint32_t pair = probabilities[2 * j + r];
    if (pair << 16 > bound) key = kGroupColumns * j + 2 * quad;
    if ((pair & 0xFFFF0000u) > bound) key = kGroupColumns * j + 2 * quad + 1;
  }
  return largest_of_quad(key);
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::selected_forward
