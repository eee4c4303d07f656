#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/portable/query_rows.cuh"

// Forward of any branch, query-major: a CTA's 64 rows walk their tiles of 64 keys with a running
// softmax (Milakov & Gimelshein 2018; Dao 2023). In the selected branch they walk the union of
// their tokens' blocks, and a warp passes over a block that none of its 16 rows selected.

namespace nsa::kernels::portable {
namespace {

// Running softmax of a thread's two rows, on raw scores: the scale is folded into the exponent.
struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f}; // of the thread's columns

  // Turns scores into unnormalised probabilities; `factor` is what earlier ones are multiplied by.
  __device__ __forceinline__ void update(float (&scores)[kTile / 8][4], float scale_log2,
                                         float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = maximum[r];
#pragma unroll
      for (float(&column)[4] : scores)
        peak = fmaxf(peak, fmaxf(column[2 * r], column[2 * r + 1]));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
      const float offset = peak == -INFINITY ? 0.0f : peak * scale_log2; // no key seen yet
      // Exactly 1 unless it has grown (the offset is rounded): a tile of which the row sees
      // nothing, visited for its neighbours in the warp, may not change a bit of it.
      factor[r] =
          peak == maximum[r] ? 1.0f : exp2_approximate(fmaf(maximum[r], scale_log2, -offset));
      maximum[r] = peak;
      float added = 0.0f;
#pragma unroll
      for (float(&column)[4] : scores) {
#pragma unroll
        for (int c = 2 * r; c < 2 * r + 2; ++c) {
          column[c] = exp2_approximate(fmaf(column[c], scale_log2, -offset));
          added += column[c];
        }
      }
      sum[r] = fmaf(sum[r], factor[r], added);
    }
  }
};

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 4 : 2)
    attend_kernel(const __grid_constant__ AttendParams params, int tiles) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ KeyTiles::Shared lists;
  const AttentionShape& shape = params.shape;
  const AttendBranch& branch = params.branch[blockIdx.y];
  const QueryTile tile(shape, tiles);
  const ThreadRows rows(shape, tile);
  const KeyTiles key_tiles(shape, branch.keys.range, tile, params.indices, lists);
  RowKeys row_keys(shape, tile, rows, key_tiles);
  const float scale_log2 = params.scale * kLog2e;
  const int quad = threadIdx.x % 4;
  Fragment q[kDim / 16];
  rows.load<kDim>(q, shape, tile, params.q);
  float out[kDim / 8][4] = {};
  Softmax softmax;

  walk_keys<kDim>(key_tiles, shape, tile, branch.keys, shared_address(stages),
                  [&](int first_key, uint32_t k_tile, uint32_t v_tile) {
                    if (!row_keys.turn_to(first_key)) return;
                    float scores[kTile / 8][4] = {};
                    multiply_transposed<kDim>(scores, [&](int step) { return q[step]; }, k_tile, 0);
                    if (!row_keys.all_seen()) {
#pragma unroll
                      for (int i = 0; i < kTile / 2; ++i) {
                        const int key = first_key + i / 4 * 8 + 2 * quad + i % 2;
                        if (!row_keys.sees(i / 2 % 2, key)) scores[i / 4][i % 4] = -INFINITY;
                      }
                    }
                    float factor[2];
                    softmax.update(scores, scale_log2, factor);
#pragma unroll
                    for (float(&column)[4] : out) {
                      column[0] *= factor[0];
                      column[1] *= factor[0];
                      column[2] *= factor[1];
                      column[3] *= factor[1];
                    }
                    Fragment probabilities[kTile / 16];
                    to_left(probabilities, scores);
                    multiply<kDim>(out, probabilities, v_tile, 0);
                  });

  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    inverse[r] = sum > 0.0f ? 1.0f / sum : 0.0f;
    if (quad == 0 && rows.valid(shape, r)) {
      branch.lse[rows.query_row(shape, tile, r)] =
          sum > 0.0f ? kLn2 * fmaf(softmax.maximum[r], scale_log2, log2f(sum)) : -INFINITY;
    }
  }
  rows.store<kDim>(branch.out, shape, tile, out, inverse);
}

} // namespace

cudaError_t launch_attend(const AttendParams& params, cudaStream_t stream) {
  if (params.branches == 0) return cudaSuccess;
  return with_head_dim(params.shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    constexpr int kBytes = kKeyStages<kDim> * kKeyStageBytes<kDim>;
    const cudaError_t error = cudaFuncSetAttribute(
        attend_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int tiles = query_tiles(params.shape);
    const dim3 grid(static_cast<unsigned>(tiles * params.shape.batch * params.shape.groups),
                    static_cast<unsigned>(params.branches));
    return launch_kernel(attend_kernel<kDim>, grid, kThreads, kBytes, stream, params, tiles);
  });
}

} // namespace nsa::kernels::portable
