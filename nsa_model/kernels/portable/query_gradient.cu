#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/portable/query_rows.cuh"

// dQ of all branches, query-major: the walk of the forward, branch after branch, over one sum in
// registers.
//   P = 2^(S - lse) with the gate folded into lse;  dS = P (dO V^T - delta);  dQ += dS K

namespace nsa::kernels::portable {
namespace {

constexpr int kPart = 32; // keys at a time: bounds the registers

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 3 : 2)
    query_gradient_kernel(const __grid_constant__ QueryGradientParams params, int tiles) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ KeyTiles::Shared lists;
  const AttentionShape& shape = params.shape;
  const QueryTile tile(shape, tiles);
  const ThreadRows rows(shape, tile);
  const float scale_log2 = params.scale * kLog2e;
  const int quad = threadIdx.x % 4;
  Fragment q[kDim / 16];
  Fragment d_out[kDim / 16];
  rows.load<kDim>(q, shape, tile, params.q);
  rows.load<kDim>(d_out, shape, tile, params.d_out);
  float d_q[kDim / 8][4] = {};

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
          for (int part = 0; part < kTile; part += kPart) {
            float p[kPart / 8][4] = {};
            float ds[kPart / 8][4] = {};
            multiply_transposed<kDim>(p, [&](int step) { return q[step]; }, k_tile, part);
            multiply_transposed<kDim>(ds, [&](int step) { return d_out[step]; }, v_tile, part);
            const bool all = row_keys.all_seen();
#pragma unroll
            for (int i = 0; i < kPart / 2; ++i) {
              const int r = i / 2 % 2;
              const int key = first_key + part + i / 4 * 8 + 2 * quad + i % 2;
              const float weight =
                  all || row_keys.sees(r, key)
                      ? exp2_approximate(fmaf(p[i / 4][i % 4], scale_log2, -lse[r]))
                      : 0.0f;
              ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] - delta[r]);
            }
            Fragment left[kPart / 16];
            to_left(left, ds);
            multiply<kDim>(d_q, left, k_tile, part);
          }
        });
  }
  rows.store<kDim>(params.d_q, shape, tile, d_q, {params.scale, params.scale});
}

} // namespace

cudaError_t launch_query_gradient(const QueryGradientParams& params, cudaStream_t stream) {
  return with_head_dim(params.shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    constexpr int kBytes = kKeyStages<kDim> * kKeyStageBytes<kDim>;
    const cudaError_t error = cudaFuncSetAttribute(
        query_gradient_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int tiles = query_tiles(params.shape);
    const auto grid = static_cast<unsigned>(tiles * params.shape.batch * params.shape.groups);
    return launch_kernel(query_gradient_kernel<kDim>, grid, kThreads, kBytes, stream, params,
                         tiles);
  });
}

} // namespace nsa::kernels::portable
