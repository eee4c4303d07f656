// dQ of all branches, query-major, on any GPU from compute capability 8.0. It makes the steps of
// the forward, one branch after another, with one sum in registers.
//
//   S = Q K^T, P = 2^(S log2 e / sqrt(d) - lse), the gate folded into lse
//   dP = dO V^T, dS = P (dP - delta), delta = <dO, O>, dQ = dS K / sqrt(d)
//
// Tile (config.h): 64 query rows, ordered [token][head], against steps of 64 keys in parts of 32,
// which limits the registers. Products are m16n8k16, with a warp's 16 rows.
//   S, dP  32 columns, contract over D; Q and dO from registers, K and V from shared memory
//   dQ     D columns, contracts over a part's keys; dS from registers, K from shared memory
//
// A CTA processes a tile of rows in all branches. attend.cu describes its steps.
//   warps 0-3  16 rows each. All do the same work: a thread copies its chunks of a later step's
//              keys, then computes with this step's.
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks of a step's K and V have arrived
// __syncthreads:
//   start of a step    all 128 threads       the step's K and V have arrived; the stage that is
//                                            filled next has been read
//   start of a branch  all 128 threads       the stages of the branch before have been read
//   list of blocks     all 128 threads       bitmap and list are complete; the previous ones have
//                                            been read

#include "nsa_model/kernels/portable/query_gradient/query_gradient.h"

#include "nsa_model/kernels/portable/query_gradient/config.h"

namespace nsa::kernels::portable {
namespace query_gradient {
namespace {

inline constexpr int kColumns = Tile::kPartKeys / kGroupColumns;

// Computes P from S.
__device__ __forceinline__ void to_probabilities(float (&p)[kColumns][kGroupFloats],
                                                 float scale_log2, const float (&lse)[2]) {
#pragma unroll
  for (float(&column)[kGroupFloats] : p) {
#pragma unroll
    for (int i = 0; i < kGroupFloats; ++i)
      column[i] = exp2_approximate(fmaf(column[i], scale_log2, -lse[i / 2]));
  }
}

// Computes dS from P and dP; it replaces dP.
__device__ __forceinline__ void to_score_gradients(float (&ds)[kColumns][kGroupFloats],
                                                   const float (&p)[kColumns][kGroupFloats],
                                                   const float (&delta)[2]) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < kGroupFloats; ++i)
      ds[j][i] = p[j][i] * (ds[j][i] - delta[i / 2]);
  }
}

template <int kDim>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident<kDim>)
    query_gradient_kernel(const __grid_constant__ QueryGradientParams params, int tiles) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ KeyTiles::Shared lists;
  const AttentionShape& shape = params.shape;
  const QueryTile tile(shape, tiles);
  const ThreadRows rows(shape, tile);
  const float scale_log2 = params.scale * kLog2e;
  const int quad = threadIdx.x % 4;
  Fragment q[kDim / kMmaDepth];
  Fragment d_out[kDim / kMmaDepth];
  rows.load<kDim>(q, shape, tile, params.q);
  rows.load<kDim>(d_out, shape, tile, params.d_out);
  float d_q[kDim / kGroupColumns][kGroupFloats] = {};

  for (int b = 0; b < params.branches; ++b) {
    const QueryGradientBranch& branch = params.branch[b];
    const KeyTiles key_tiles(shape, branch.keys.range, tile, params.indices, lists);
    RowKeys row_keys(shape, tile, rows, key_tiles);
    float lse[2];
    float delta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int floats = head_floats(shape.heads);
      const int token = min(rows.token[r], shape.sequence - 1);
      const float* statistics =
          branch.statistics + tile.group_row(shape, token) * 2 * floats + rows.head[r];
      lse[r] = statistics[0];
      delta[r] = statistics[floats];
    }
    walk_keys<kDim>(
        key_tiles, shape, tile, branch.keys, shared_address(stages),
        [&](int first_key, uint32_t k_tile, uint32_t v_tile) {
          if (!row_keys.turn_to(first_key)) return;
#pragma unroll
          for (int part = 0; part < Tile::kKeys; part += Tile::kPartKeys) {
            float p[kColumns][kGroupFloats] = {};
            float ds[kColumns][kGroupFloats] = {};
            multiply_transposed<kDim>(p, [&](int step) { return q[step]; }, k_tile, part);
            multiply_transposed<kDim>(ds, [&](int step) { return d_out[step]; }, v_tile, part);
            to_probabilities(p, scale_log2, lse);
            row_keys.replace_unseen(p, first_key + part, quad, 0.0f);
            to_score_gradients(ds, p, delta);
            Fragment left[Tile::kPartKeys / kMmaDepth];
            to_left(left, ds);
            multiply<kDim>(d_q, left, k_tile, part);
          }
        });
  }
  rows.store<kDim>(params.d_q, shape, tile, d_q, {params.scale, params.scale});
}

} // namespace
} // namespace query_gradient

cudaError_t launch_query_gradient(const QueryGradientParams& params, cudaStream_t stream) {
  return with_head_dim(params.shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    return launch_query_major<kDim>(query_gradient::query_gradient_kernel<kDim>, params, 1, stream);
  });
}

} // namespace nsa::kernels::portable
