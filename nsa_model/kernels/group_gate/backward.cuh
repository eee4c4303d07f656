#pragma once
// Parts of the gate's backward. Device code only.

#include "nsa_model/kernels/group_gate/products.cuh"

namespace nsa::kernels::group_gate {

// Returns a row's gradient of the scores, summed over all heads of its group, in every lane of the
// quad.
__device__ __forceinline__ void score_gradient(const GroupGateBackwardParams& params, int64_t row,
                                               int q, float (&d_score)[kBranches]) {
  const bool there = row < params.rows;
  const int64_t first = row * params.heads * kBranches;
  float along = 0.0f, gate[kBranches];
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    gate[b] = there ? params.gates[first + b] : 0.0f;
    d_score[b] = 0.0f;
  }
  for (int head = q; there && head < params.heads; head += 4) {
#pragma unroll
    for (int b = 0; b < kBranches; ++b)
      d_score[b] += params.d_gates[first + head * kBranches + b];
  }
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    d_score[b] = quad_sum(d_score[b]);
    along = fmaf(gate[b], d_score[b], along);
  }
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
    d_score[b] = gate[b] * (d_score[b] - along) * params.inverse_temperature;
}

// W_c with rows in the summed dimension: [step of 16 units][eight columns]. A lane holds rows 2q,
// 2q + 1 and 2q + 8, 2q + 9 of column 8 n + g.
struct MeanWeights {
  uint32_t of[kHiddenSteps][kWidthGroups][2];
  __device__ __forceinline__ void load(const __nv_bfloat16* fc1, const Lane& lane) {
    const auto* const bits = reinterpret_cast<const uint16_t*>(fc1);
#pragma unroll
    for (int s = 0; s < kHiddenSteps; ++s)
#pragma unroll
      for (int n = 0; n < kWidthGroups; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = kDepth * s + kRowsApart * i + 2 * lane.q, column = kGroup * n + lane.g;
          of[s][n][i] = static_cast<uint32_t>(bits[row * kWidth + column]) |
                        static_cast<uint32_t>(bits[(row + 1) * kWidth + column]) << 16;
        }
  }
};

// Pairs of units of rows g and g + 8. They are left operands without conversion: [u][row].
using UnitPairs = Split[kUnits][2];

// The same product for left operands that are sums of two bf16.
__device__ __forceinline__ void multiply_split(float (&sum)[4], const Split& a0, const Split& a1,
                                               const Split& a2, const Split& a3, uint32_t b0,
                                               uint32_t b1) {
  multiply(sum, a0.main, a1.main, a2.main, a3.main, b0, b1);
  multiply(sum, a0.rest, a1.rest, a2.rest, a3.rest, b0, b1);
}

// Loads W_d of units kGroup u + 2 q and kGroup u + 2 q + 1.
__device__ __forceinline__ void load_unit(float (&fc2)[kBranches][2], const __nv_bfloat16* from,
                                          int u, const Lane& lane) {
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    const uint32_t pair =
        *reinterpret_cast<const uint32_t*>(from + b * kHidden + kGroup * u + 2 * lane.q);
    fc2[b][0] = low_of(pair);
    fc2[b][1] = high_of(pair);
  }
}

// Sums rows of W_d's gradient over the eight lanes that hold the same units.
__device__ __forceinline__ void sum_over_rows(float (&d_fc2)[kBranches][2 * kUnits]) {
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
#pragma unroll
    for (float& value : d_fc2[b])
      for (int step = 4; step < kWarpThreads; step *= 2)
        value += __shfl_xor_sync(~0u, value, step);
}

// Transposes each 8 x 8 matrix of a tile.
__device__ __forceinline__ void transpose(UnitPairs& turned, const UnitPairs& d_pair) {
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      turned[u][r] = {transposed(d_pair[u][r].main), transposed(d_pair[u][r].rest)};
}

} // namespace nsa::kernels::group_gate
