#pragma once
// Products of the gate's kernels, and what a lane holds of their operands. Device code only.
//
// A warp multiplies tiles of 16 rows by mma.m16n8k16 (bf16 operands, FP32 sums). With g = lane / 4
// and q = lane % 4, a lane holds of a tile
//   left operand   registers 0, 2: row g, columns 2q, 2q + 1 and 2q + 8, 2q + 9; 1, 3: row g + 8
//   right operand  registers 0, 1: column g, rows 2q, 2q + 1 and 2q + 8, 2q + 9
//   sum            0, 1: row g, columns 2q, 2q + 1; 2, 3: row g + 8.
// A step may contract any 16 elements in any order if both operands agree. Lane q loads elements
// 32c + 8q .. 32c + 8q + 7 at once, and step 2c + s uses its four elements from 4s on.

#include "nsa_model/kernels/common/quad.cuh"
#include "nsa_model/kernels/group_gate/config.h"

namespace nsa::kernels::group_gate {

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
// Two values, each as the sum of two bf16, which is exact to 16 bits.
struct Split {
  uint32_t main, rest;
};
__device__ __forceinline__ Split split(float a, float b) {
  const uint32_t main = pack(a, b);
  return {main, pack(a - low_of(main), b - high_of(main))};
}

__device__ __forceinline__ void multiply(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  multiply_add(sum, Fragment{{a0, a1, a2, a3}}, b0, b1);
}
// Transposes an 8 x 8 matrix whose lanes hold row g, columns 2q, 2q + 1. The result has the same
// layout.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// 16 bytes as four pairs: elements 8q .. 8q + 7 of a chunk of 32.
struct Pairs {
  uint32_t pair[kPairs];
};
__device__ __forceinline__ Pairs load_pairs(const __nv_bfloat16* from) {
  const uint4 four = load_vector(from);
  return {{four.x, four.y, four.z, four.w}};
}

struct Lane {
  int g, q;
};
__device__ __forceinline__ Lane lane_of_thread() {
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  return {lane / 4, lane % 4};
}

// W_c for the hidden layer: [units of eight][chunk of 32 columns].
struct HiddenWeights {
  Pairs of[kUnits][kChunks];
  __device__ __forceinline__ void load(const __nv_bfloat16* fc1, const Lane& lane) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        of[u][c] =
            load_pairs(fc1 + (kGroup * u + lane.g) * kWidth + kChunk * c + kVectorValues * lane.q);
  }
};
// Rows g and g + 8 of a tile of mean queries: [row][chunk]. Rows past the end are zero.
struct MeanRows {
  Pairs of[2][kChunks];
  __device__ __forceinline__ void load(const __nv_bfloat16* mean, int64_t first, int64_t rows,
                                       const Lane& lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int64_t row = first + lane.g + kRowsApart * r;
        of[r][c] = {};
        if (row < rows)
          of[r][c] = load_pairs(mean + row * kWidth + kChunk * c + kVectorValues * lane.q);
      }
  }
};

// before[u]: the hidden layer before SiLU, for rows g and g + 8 and units 8u + 2q, 8u + 2q + 1.
__device__ __forceinline__ void hidden_layer(float (&before)[kUnits][4], const MeanRows& mean,
                                             const HiddenWeights& weights) {
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (float& value : before[u])
      value = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int s = 0; s < kPairs; s += 2)
        multiply(before[u], mean.of[0][c].pair[s], mean.of[1][c].pair[s], mean.of[0][c].pair[s + 1],
                 mean.of[1][c].pair[s + 1], weights.of[u][c].pair[s], weights.of[u][c].pair[s + 1]);
  }
}

// Loads W_d of this lane's units: [branch][2 u + {0, 1}].
__device__ __forceinline__ void load_scores(float (&fc2)[kBranches][2 * kUnits],
                                            const __nv_bfloat16* from, const Lane& lane) {
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint32_t pair =
          *reinterpret_cast<const uint32_t*>(from + b * kHidden + kGroup * u + 2 * lane.q);
      fc2[b][2 * u] = low_of(pair);
      fc2[b][2 * u + 1] = high_of(pair);
    }
}

} // namespace nsa::kernels::group_gate
