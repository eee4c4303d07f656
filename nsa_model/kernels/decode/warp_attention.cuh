#pragma once
// Online attention of a warp: up to 16 query rows (the heads of one KV group) with 32 keys at a
// time. Tests compile it for the host with their own versions of the few warp functions that it
// uses.
//
//   S = Q K^T     m16n8k16, four products of eight keys: rows are heads, columns keys
//   P = 2^(S scale log2 e - reference)
//   O = O 2^(old - new reference) + P V     P as two bf16: rounded value and rest
//
// Keys, values and queries go from global memory directly to the registers of the products, 16
// bytes a load, without shared memory. For this we choose the order of keys and of dimensions
// within a product. With g = lane / 4 and quad = lane % 4, a lane
//   loads the key score_key(t, g) of product t, dimensions 8 quad .. and 32 + 8 quad ..
//   holds of S the rows g and g + 8, keys 8 quad .. 8 quad + 7
//   loads the values of these keys, dimensions 8 g .. 8 g + 7
//   holds of O the rows g and g + 8, dimensions 16 quad .. 16 quad + 15
//
// A reference is an integer, the rounded largest score so far. Scaling by 2^integer does not round.
// So equal keys get equal bits in every warp and piece, and if block scores are equal, the lower
// block is chosen.

#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/decode/config.h"

namespace nsa::kernels::decode {

inline constexpr int kScoreProducts = Tile::kStepKeys / kGroupColumns;
inline constexpr int kDimProducts = kHeadDim / kMmaDepth;
inline constexpr int kOutProducts = kHeadDim / kGroupColumns;

inline constexpr int kNoReference = -(1 << 22); // reference of rows that have seen no key
inline constexpr float kLargestScore = 1 << 20; // in log2; larger scores are clamped

// Key of column `column` of the score product t.
__host__ __device__ constexpr int score_key(int t, int column) {
  return kLaneKeys * (column / 2) + 2 * t + column % 2;
}
// Dimension of the i-th of the kLaneDims values of O that a lane of a quad holds. It comes from
// product i % kOutProducts.
__host__ __device__ constexpr int out_dimension(int quad, int i) {
  return kLaneDims * quad + i;
}

// 2^e without rounding, for e <= 0. Returns 0 below the smallest normal number.
__host__ __device__ __forceinline__ float power_of_two(int e) {
  return __builtin_bit_cast(float, static_cast<int32_t>(((e > -127 ? e : -127) + 127) << 23));
}

// x = whole + rest, both exact, rest in [-0.5, 0.5].
struct Split {
  int whole;
  float rest;
};
__host__ __device__ __forceinline__ Split split_score(float x) {
  constexpr float kMagic = 12582912.0f; // 1.5 * 2^23: a sum with it has no fraction bits
  const float cut = fminf(fmaxf(x, -kLargestScore), kLargestScore);
  const float shifted = cut + kMagic;
  return {__builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kMagic),
          cut - (shifted - kMagic)};
}

// Loads 16 bytes that are read only once.
__device__ __forceinline__ uint4 load_once(const __nv_bfloat16* source) {
#if defined(__CUDA_ARCH__)
  return __ldcs(reinterpret_cast<const uint4*>(source));
#else
  return load_vector(source);
#endif
}

__device__ __forceinline__ uint32_t word_of(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}
// Combines the low or the high halves of two words; that of `first` is in the low half.
__device__ __forceinline__ uint32_t pair_halves(uint32_t first, uint32_t second, bool high) {
  return high ? (first >> 16 | (second & 0xFFFF0000u)) : ((first & 0xFFFFu) | second << 16);
}

// Maximum over the four lanes of a quad.
__device__ __forceinline__ int quad_max(int value) {
  value = max(value, __shfl_xor_sync(~0u, value, 1));
  return max(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// Eq. 9 for l = 32, d = 16, l' = 64. Of the compressed rows 4b - 1 .. 4b + 3, block b counts the
// first and the last once and the others twice. These are the sums of a lane's two blocks, from its
// keys' probabilities. The step's first block lacks the row before the step.
struct BlockSums {
  float first, second;
};
__device__ __forceinline__ float own_rows_sum(const float* p) {
  return 2.0f * (p[0] + p[1] + p[2]) + p[3];
}
__device__ __forceinline__ BlockSums block_sums(const float (&p)[kLaneKeys]) {
  const float before = __shfl_up_sync(~0u, p[kLaneKeys - 1], 1, 4);
  const bool is_first = threadIdx.x % 4 == 0;
  return {own_rows_sum(p) + (is_first ? 0.0f : before),
          own_rows_sum(p + kRowsOfBlock) + p[kRowsOfBlock - 1]};
}

// A lane's part of a step's keys and values. Loads that are in flight are in its registers.
struct StepKeys {
  uint4 keys[kScoreProducts][2];
  uint4 values[kLaneKeys];

  // Loads the first `count` (1 to 32) of 32 keys. row(i) is the offset of key i in k and v; it is
  // called only for i < count.
  template <typename Row>
  __device__ __forceinline__ void load(const __nv_bfloat16* k, const __nv_bfloat16* v,
                                       const Row& row, int count) {
    const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
    const int group = lane / 4;
    const int quad = lane % 4;
#pragma unroll
    for (int t = 0; t < kScoreProducts; ++t) {
      const __nv_bfloat16* source =
          k + row(min(score_key(t, group), count - 1)) + kVectorValues * quad;
      keys[t][0] = load_once(source);
      keys[t][1] = load_once(source + kHeadDim / 2);
    }
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i)
      values[i] = load_once(v + row(min(kLaneKeys * quad + i, count - 1)) + kVectorValues * group);
  }
};

// kHalves: 1 for up to 8 heads, 2 for up to 16.
template <int kHalves> class WarpAttention {
public:
  // q: [heads, 64]. scale: factor of q . k.
  __device__ __forceinline__ WarpAttention(const __nv_bfloat16* q, int heads, float scale)
      : scale_(scale * kLog2e) {
    const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
    const int quad = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = lane / 4 + kHalfHeads * half;
      uint4 words[2] = {};
      if (half < kHalves && head < heads) {
        words[0] = load_vector(q + head * kHeadDim + kVectorValues * quad);
        words[1] = load_vector(q + head * kHeadDim + kHeadDim / 2 + kVectorValues * quad);
      }
#pragma unroll
      for (int i = 0; i < kDimProducts; ++i) {
        q_[i].r[half] = word_of(words[i / 2], i % 2 * 2);
        q_[i].r[half + 2] = word_of(words[i / 2], i % 2 * 2 + 1);
      }
    }
    clear();
  }

  // Resets the state to that before the first key.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      reference[half] = kNoReference;
      sum[half] = 0;
    }
#pragma unroll
    for (int t = 0; t < kOutProducts; ++t)
#pragma unroll
      for (int i = 0; i < kGroupFloats; ++i)
        out_[t][i] = 0;
  }

  // Attends to the first `count` (1 to 32) keys of a step. p: probabilities of the lane's keys 8
  // quad .. 8 quad + 7, relative to `reference`.
  __device__ __forceinline__ void attend(const StepKeys& step, int count,
                                         float (&p)[kHalves][kLaneKeys]) {
    const int quad = static_cast<int>(threadIdx.x % 4);
    float scores[kScoreProducts][kGroupFloats] = {};
#pragma unroll
    for (int t = 0; t < kScoreProducts; ++t)
#pragma unroll
      for (int i = 0; i < kDimProducts; ++i)
        multiply_add(scores[t], q_[i], word_of(step.keys[t][i / 2], i % 2 * 2),
                     word_of(step.keys[t][i / 2], i % 2 * 2 + 1));

    const int limit = count - kLaneKeys * quad; // number of the lane's keys that count
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      int whole[kLaneKeys];
      int largest = kNoReference;
#pragma unroll
      for (int i = 0; i < kLaneKeys; ++i) {
        const Split split = split_score(scores[i / 2][2 * half + i % 2] * scale_);
        whole[i] = split.whole;
        p[half][i] = exp2_approximate(split.rest);
        if (i < limit) largest = max(largest, split.whole);
      }
      largest = max(quad_max(largest), reference[half]);
      const float rescale = power_of_two(reference[half] - largest);
      reference[half] = largest;
      sum[half] *= rescale;
#pragma unroll
      for (int t = 0; t < kOutProducts; ++t) {
        out_[t][2 * half] *= rescale;
        out_[t][2 * half + 1] *= rescale;
      }
#pragma unroll
      for (int i = 0; i < kLaneKeys; ++i) {
        p[half][i] = i < limit ? p[half][i] * power_of_two(min(whole[i] - largest, 0)) : 0.0f;
        sum[half] += p[half][i];
      }
    }

#pragma unroll
    for (int part = 0; part < 2; ++part) { // keys 4 part .. 4 part + 3 of each lane
      Fragment rounded = {};
      Fragment rest = {};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float low = p[half][4 * part + i];
          const float high = p[half][4 * part + i + 1];
          const uint32_t pair = pack_bf16(low, high);
          rounded.r[half + i] = pair;
          rest.r[half + i] = pack_bf16(low - __builtin_bit_cast(float, pair << 16),
                                       high - __builtin_bit_cast(float, pair & 0xFFFF0000u));
        }
      }
#pragma unroll
      for (int t = 0; t < kOutProducts; ++t) {
        const auto word = [&](int i) { return word_of(step.values[4 * part + i], t / 2); };
        const uint32_t first = pair_halves(word(0), word(1), t % 2 != 0);
        const uint32_t second = pair_halves(word(2), word(3), t % 2 != 0);
        multiply_add(out_[t], rounded, first, second);
        multiply_add(out_[t], rest, first, second);
      }
    }
  }

  // Returns the i-th of the lane's 16 dimensions (out_dimension) in row lane / 4 + 8 half, not
  // divided by the sum.
  __device__ __forceinline__ float out(int half, int i) const {
    return out_[i % kOutProducts][2 * half + i / kOutProducts];
  }

  int reference[kHalves]; // of rows lane / 4 and lane / 4 + 8, in log2
  float sum[kHalves];     // over the lane's own keys

private:
  Fragment q_[kDimProducts];
  float out_[kOutProducts][kGroupFloats];
  float scale_; // includes log2 e
};

} // namespace nsa::kernels::decode
