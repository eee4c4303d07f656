#pragma once
// What the list and range forms of the backward share: the walk over a chunk of query rows whose
// statistics are per column of the products, and the tile of results.

#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/common/wgmma.cuh"

namespace nsa::kernels {

#if NSA_HOPPER_CODE

// Where a thread's columns lie in the statistics of a chunk. Columns 8j + 2 quad of j = 3a + b
// belong to token 4a + token[b], head head[b]; both columns of a pair share the token because 6 is
// even.
struct Columns {
  int token[3];
  int offset[3]; // in floats
  __device__ int at(int j) const { return offset[j % 3] + j / 3 * 4 * kRowStatistics; }
  __device__ int local_token(int j) const { return j / 3 * 4 + token[j % 3]; }
  __device__ explicit Columns(int quad) {
#pragma unroll
    for (int b = 0; b < 3; ++b) {
      token[b] = (8 * b + 2 * quad) / kHeadsPerGroup;
      offset[b] = token[b] * kRowStatistics + (8 * b + 2 * quad) % kHeadsPerGroup;
    }
  }
};

// S^T to P^T with 2 kColumnTiles accumulators a row: 2^(S^T scale - lse), the gate folded into lse.
template <int kCount>
__device__ __forceinline__ void to_probabilities(float (&scores)[kCount], const float* statistics,
                                                 const Columns& columns, float scale_log2) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 lse = *reinterpret_cast<const float2*>(statistics + columns.at(j));
    scores[4 * j] = exp2_approximate(fmaf(scores[4 * j], scale_log2, -lse.x));
    scores[4 * j + 1] = exp2_approximate(fmaf(scores[4 * j + 1], scale_log2, -lse.y));
    scores[4 * j + 2] = exp2_approximate(fmaf(scores[4 * j + 2], scale_log2, -lse.x));
    scores[4 * j + 3] = exp2_approximate(fmaf(scores[4 * j + 3], scale_log2, -lse.y));
  }
}

// dP^T to dS^T: P^T (dP^T - delta).
template <int kCount>
__device__ __forceinline__ void to_score_gradients(float (&ds)[kCount], const float (&p)[kCount],
                                                   const float* statistics,
                                                   const Columns& columns) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 delta = *reinterpret_cast<const float2*>(statistics + 8 + columns.at(j));
    ds[4 * j] = p[4 * j] * (ds[4 * j] - delta.x);
    ds[4 * j + 1] = p[4 * j + 1] * (ds[4 * j + 1] - delta.y);
    ds[4 * j + 2] = p[4 * j + 2] * (ds[4 * j + 2] - delta.x);
    ds[4 * j + 3] = p[4 * j + 3] * (ds[4 * j + 3] - delta.y);
  }
}

// Accumulators to a [64, 64] tile; a quad writes 32 contiguous bytes.
__device__ __forceinline__ void store_tile(float* target, const float (&values)[32], float factor,
                                           int row, int quad) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float2*>(target + (row + 8 * r) * kHeadDim + 8 * j + 2 * quad) = {
          values[4 * j + 2 * r] * factor, values[4 * j + 2 * r + 1] * factor};
    }
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
