// Attention of any branch, query-major, on any GPU from compute capability 8.0.
//
//   S = Q K^T / sqrt(d), m = max(S), P = 2^((S - m) log2 e), O = P V / sum(P),
//   lse = m + ln sum(P), over the keys that a row sees; -inf and 0 if it sees none
//
// with a running maximum and sum (Milakov & Gimelshein 2018; Dao 2023).
//
// Tile (config.h): 64 query rows, ordered [token][head], against steps of 64 keys. Products are
// m16n8k16, with a warp's 16 rows.
//   S  64 columns, contracts over D; Q from registers, K from shared memory
//   O  D columns, contracts over the keys; P from registers, V from shared memory
//
// A CTA processes a tile of rows in one branch. Its steps are neighbours, starting at the first key
// that any row sees. In the selected branch they are the blocks that any of its tokens selected. A
// warp skips a block that none of its rows selected.
//   warps 0-3  16 rows each. All do the same work: a thread copies its chunks of a later step's
//              keys, then computes with this step's.
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks of a step's K and V have arrived
// __syncthreads:
//   start of a step    all 128 threads       the step's K and V have arrived; the stage that is
//                                            filled next has been read
//   list of blocks     all 128 threads       bitmap and list are complete

#include "nsa_model/kernels/common/quad.cuh"
#include "nsa_model/kernels/portable/attend/attend.h"

#include "nsa_model/kernels/portable/attend/config.h"

namespace nsa::kernels::portable {
namespace attend {
namespace {

// Running softmax of a thread's two rows, on raw scores. The scale is folded into the exponent.
struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f}; // sums of the thread's columns

  // Turns scores into unnormalised probabilities. `factor` multiplies the earlier ones.
  __device__ __forceinline__ void update(float (&scores)[Tile::kKeys / kGroupColumns][kGroupFloats],
                                         float scale_log2, float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = maximum[r];
#pragma unroll
      for (float(&column)[kGroupFloats] : scores)
        peak = fmaxf(peak, fmaxf(column[2 * r], column[2 * r + 1]));
      peak = largest_of_quad(peak);
      // -INFINITY: no key seen yet.
      const float offset = peak == -INFINITY ? 0.0f : peak * scale_log2;
      // The factor is exactly 1 unless the maximum has grown (the offset is rounded). A row may
      // visit a tile of which it sees nothing, because of its neighbours in the warp. That must not
      // change any bit of it.
      factor[r] =
          peak == maximum[r] ? 1.0f : exp2_approximate(fmaf(maximum[r], scale_log2, -offset));
      maximum[r] = peak;
      float added = 0.0f;
#pragma unroll
      for (float(&column)[kGroupFloats] : scores) {
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
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident<kDim>)
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
  Fragment q[kDim / kMmaDepth];
  rows.load<kDim>(q, shape, tile, params.q);
  float out[kDim / kGroupColumns][kGroupFloats] = {};
  Softmax softmax;

  walk_keys<kDim>(key_tiles, shape, tile, branch.keys, shared_address(stages),
                  [&](int first_key, uint32_t k_tile, uint32_t v_tile) {
                    if (!row_keys.turn_to(first_key)) return;
                    float scores[Tile::kKeys / kGroupColumns][kGroupFloats] = {};
                    multiply_transposed<kDim>(scores, [&](int step) { return q[step]; }, k_tile, 0);
                    row_keys.replace_unseen(scores, first_key, quad, -INFINITY);
                    float factor[2];
                    softmax.update(scores, scale_log2, factor);
#pragma unroll
                    for (float(&column)[kGroupFloats] : out) {
                      column[0] *= factor[0];
                      column[1] *= factor[0];
                      column[2] *= factor[1];
                      column[3] *= factor[1];
                    }
                    Fragment probabilities[Tile::kKeys / kMmaDepth];
                    to_left(probabilities, scores);
                    multiply<kDim>(out, probabilities, v_tile, 0);
                  });

  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = sum_of_quad(softmax.sum[r]);
    inverse[r] = sum > 0.0f ? 1.0f / sum : 0.0f;
    if (quad == 0 && rows.valid(shape, r)) {
      branch.lse[rows.query_row(shape, tile, r)] =
          sum > 0.0f ? kLn2 * fmaf(softmax.maximum[r], scale_log2, log2f(sum)) : -INFINITY;
    }
  }
  rows.store<kDim>(branch.out, shape, tile, out, inverse);
}

} // namespace
} // namespace attend

cudaError_t launch_attend(const AttendParams& params, cudaStream_t stream) {
  if (params.branches == 0) return cudaSuccess;
  return with_head_dim(params.shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    return launch_query_major<kDim>(attend::attend_kernel<kDim>, params, params.branches, stream);
  });
}

} // namespace nsa::kernels::portable
