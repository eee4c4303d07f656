#pragma once
// Parts of the gate's backward. Device code only.

#include "nsa_model/kernels/group_gate/products.cuh"

namespace nsa::kernels::group_gate {

// Returns the gradient of the scores of rows g and g + 8 of a tile, summed over all heads of their
// groups, in every lane of the quad.
__device__ __forceinline__ void score_gradient(const GroupGateBackwardParams& params, int64_t first,
                                               const Lane& lane, float (&d_score)[2][kBranches]) {
  float gate[2][kBranches];
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int b = 0; b < kBranches; ++b) {
      const int64_t row = first + lane.g + kRowsApart * r;
      gate[r][b] = row < params.rows ? params.gates[row * params.heads * kBranches + b] : 0.0f;
      d_score[r][b] = 0.0f;
    }
  for (int head = lane.q; head < params.heads; head += 8) {
    float loaded[2][2][kBranches]; // [row][heads `head` and head + 4], loaded before they are added
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int b = 0; b < kBranches; ++b) {
          const int64_t row = first + lane.g + kRowsApart * r;
          const bool there = row < params.rows && head + 4 * h < params.heads;
          loaded[r][h][b] =
              there ? params.d_gates[(row * params.heads + head + 4 * h) * kBranches + b] : 0.0f;
        }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int b = 0; b < kBranches; ++b)
          d_score[r][b] += loaded[r][h][b];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float along = 0.0f;
#pragma unroll
    for (int b = 0; b < kBranches; ++b) {
      d_score[r][b] = sum_of_quad(d_score[r][b]);
      along = fmaf(gate[r][b], d_score[r][b], along);
    }
#pragma unroll
    for (int b = 0; b < kBranches; ++b)
      d_score[r][b] = gate[r][b] * (d_score[r][b] - along) * params.inverse_temperature;
  }
}

// W_c with rows in the summed dimension: [step of 16 units][n], n = pair p of chunk c. Each is the
// transposed matrix of eight units by the columns 32c + 8q + 2p + {0, 1} of all q. A lane holds
// rows 2q, 2q + 1 and 2q + 8, 2q + 9 of column 32c + 8 (g / 2) + 2p + g % 2.
struct MeanWeights {
  uint32_t of[kHiddenSteps][kWidthGroups][2];
  __device__ __forceinline__ void turn(const HiddenWeights& weights) {
#pragma unroll
    for (int s = 0; s < kHiddenSteps; ++s)
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int p = 0; p < kPairs; ++p)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            of[s][kPairs * c + p][i] = transposed(weights.of[2 * s + i][c].pair[p]);
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
