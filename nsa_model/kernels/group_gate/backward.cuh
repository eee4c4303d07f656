#pragma once
// The backward of the gate up to a CTA's sums of the weights' gradients. Device code only.

#include "nsa_model/kernels/group_gate/products.cuh"

namespace nsa::kernels::group_gate {

// The scores' gradient of a row, over all heads of its group, in every lane of the quad.
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

// W_c with its rows along the sum: [step of 16 units][eight columns], rows 2q, 2q + 1 and 2q + 8,
// 2q + 9 of column 8 n + g.
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

// The hidden layer before SiLU becomes its gradient; d_fc2 += the gradient of W_d's rows.
__device__ __forceinline__ void to_hidden_gradient(float (&d_before)[kUnits][4],
                                                   float (&d_fc2)[kBranches][2 * kUnits],
                                                   const float (&d_score)[2][kBranches],
                                                   const __nv_bfloat16* weights, const Lane& lane) {
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    float fc2[kBranches][2];
#pragma unroll
    for (int b = 0; b < kBranches; ++b) {
      const uint32_t pair =
          *reinterpret_cast<const uint32_t*>(weights + b * kHidden + kGroup * u + 2 * lane.q);
      fc2[b][0] = low_of(pair);
      fc2[b][1] = high_of(pair);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float before = d_before[u][2 * r + i], part = sigmoid(before);
        const float after = before * part;
        float up = 0.0f;
#pragma unroll
        for (int b = 0; b < kBranches; ++b) {
          up = fmaf(fc2[b][i], d_score[r][b], up);
          d_fc2[b][2 * u + i] = fmaf(d_score[r][b], after, d_fc2[b][2 * u + i]);
        }
        d_before[u][2 * r + i] = up * part * fmaf(before, 1.0f - part, 1.0f);
      }
  }
}

// Pairs of units of rows g and g + 8, which are left operands as they are: [u][row].
using UnitPairs = Split[kUnits][2];

// d_mean = d_before W_c.
__device__ __forceinline__ void store_mean_gradient(const GroupGateBackwardParams& params,
                                                    const UnitPairs& d_pair,
                                                    const MeanWeights& mean_weights, int64_t first,
                                                    const Lane& lane) {
#pragma unroll
  for (int n = 0; n < kWidthGroups; ++n) {
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < kHiddenSteps; ++s) {
      const auto& right = mean_weights.of[s][n];
      multiply(sum, d_pair[2 * s][0].main, d_pair[2 * s][1].main, d_pair[2 * s + 1][0].main,
               d_pair[2 * s + 1][1].main, right[0], right[1]);
      multiply(sum, d_pair[2 * s][0].rest, d_pair[2 * s][1].rest, d_pair[2 * s + 1][0].rest,
               d_pair[2 * s + 1][1].rest, right[0], right[1]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = first + lane.g + kRowsApart * r;
      if (row < params.rows)
        *reinterpret_cast<uint32_t*>(params.d_mean + row * kWidth + kGroup * n + 2 * lane.q) =
            pack(sum[2 * r], sum[2 * r + 1]);
    }
  }
}

// d_W_c += d_before^T mean, over the tile's rows. Both operands are transposed matrices of eight by
// eight: of d_before units 8u .. + 7; of the mean, for pair p of chunk c, the columns
// 32c + 8q + 2p + {0, 1}, so that sum n = 4c + p has lane q's columns at 32c + 8q + 2p.
__device__ __forceinline__ void add_hidden_weights(float (&d_fc1)[kHiddenSteps][kWidthGroups][4],
                                                   const UnitPairs& d_pair, const MeanRows& mean) {
  UnitPairs turned;
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      turned[u][r] = {transposed(d_pair[u][r].main), transposed(d_pair[u][r].rest)};
#pragma unroll
  for (int c = 0; c < kChunks; ++c)
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const uint32_t right0 = transposed(mean.of[0][c].pair[p]);
      const uint32_t right1 = transposed(mean.of[1][c].pair[p]);
#pragma unroll
      for (int s = 0; s < kHiddenSteps; ++s) {
        float(&sum)[4] = d_fc1[s][kPairs * c + p];
        multiply(sum, turned[2 * s][0].main, turned[2 * s + 1][0].main, turned[2 * s][1].main,
                 turned[2 * s + 1][1].main, right0, right1);
        multiply(sum, turned[2 * s][0].rest, turned[2 * s + 1][0].rest, turned[2 * s][1].rest,
                 turned[2 * s + 1][1].rest, right0, right1);
      }
    }
}

// Adds up the warps' sums in `sums`, in the order of warps. All threads.
__device__ __forceinline__ void sum_warps(float (&sums)[kWeights], int warp, const Lane& lane,
                                          const float (&d_fc1)[kHiddenSteps][kWidthGroups][4],
                                          float (&d_fc2)[kBranches][2 * kUnits]) {
  // Rows of W_d: over the eight lanes that hold the same units.
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
#pragma unroll
    for (float& value : d_fc2[b])
      for (int step = 4; step < Tile::kWarpThreads; step *= 2)
        value += __shfl_xor_sync(~0u, value, step);
  for (int turn = 0; turn < Tile::kWarps; ++turn) { // in the order of warps
    if (warp == turn) {
      const auto put = [&](int place, float value) {
        sums[place] = turn == 0 ? value : sums[place] + value;
      };
#pragma unroll
      for (int s = 0; s < kHiddenSteps; ++s)
#pragma unroll
        for (int n = 0; n < kWidthGroups; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            put((kDepth * s + lane.g + i / 2 * kRowsApart) * kWidth + n / kPairs * kChunk +
                    lane.q * kVector + n % kPairs * 2 + i % 2,
                d_fc1[s][n][i]);
      if (lane.g == 0) {
#pragma unroll
        for (int b = 0; b < kBranches; ++b)
#pragma unroll
          for (int u = 0; u < kUnits; ++u)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              put(kHidden * kWidth + b * kHidden + kGroup * u + 2 * lane.q + i,
                  d_fc2[b][2 * u + i]);
      }
    }
    __syncthreads();
  }
}

} // namespace nsa::kernels::group_gate
