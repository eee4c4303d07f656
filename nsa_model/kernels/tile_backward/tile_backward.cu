#include "nsa_model/kernels/tile_backward/tile_backward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/query_tiles.cuh"
#include "nsa_model/kernels/common/tensor_map.h"

// Tiles, roles and schedule as in tile_forward.cu. Each consumer warpgroup owns 64 query rows:
//   S  = Q K^T    dP = dO V^T     m64n64k64, both from shared memory
//   dS = 2^(S - lse) (dP - delta)
//   dQ += dS K                    m64n64k64, dS from registers, K with keys along the contraction
// The next tile's S is issued before this tile's dQ and the next dP after it: both run under the
// next exponentials.

namespace nsa::kernels {
namespace {

constexpr int kThreads = 128 * (kTileConsumers + 1);
constexpr int kQueryStages = 2;
constexpr int kKeyStages = 6;
constexpr int kQueryBytes = kTileRows * kRowBytes;

struct Shared {
  alignas(1024) uint8_t queries[kQueryStages][2][kQueryBytes]; // Q, dO
  alignas(1024) uint8_t keys[kKeyStages][2][kTileKeyBytes];    // K, V
  alignas(8) uint64_t queries_full[kQueryStages];
  uint64_t queries_empty[kQueryStages];
  uint64_t keys_full[kKeyStages];
  uint64_t keys_empty[kKeyStages];
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;

#if NSA_HOPPER_CODE

template <KeyRange kRange, typename Heads>
__device__ void produce(const TileBackwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& d_out_map,
                        const CUtensorMap& k_map, const CUtensorMap& v_map, Shared& shared,
                        int tiles) {
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  const int query_bytes = heads.tokens(kTileRows) * heads.count() * kRowBytes;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = tile_of<kRange>(params, heads, index, tiles);
    const uint32_t query_full = shared_address(&shared.queries_full[query_ring.stage]);
    const int head = tile.group * heads.count();
    barrier_wait(shared_address(&shared.queries_empty[query_ring.stage]), query_ring.phase ^ 1u);
    barrier_expect(query_full, 2 * query_bytes);
    load_box(shared_address(shared.queries[query_ring.stage][0]), &q_map, 0, head, tile.token,
             tile.batch, query_full);
    load_box(shared_address(shared.queries[query_ring.stage][1]), &d_out_map, 0, head, tile.token,
             tile.batch, query_full);
    query_ring.advance();
    load_keys(tile, k_map, v_map, shared, key_ring);
  }
}

template <KeyRange kRange, typename Heads>
__device__ void consume(const TileBackwardParams& params, const Heads& heads, Shared& shared,
                        int tiles) {
  const int warpgroup = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const int row = thread / 32 * 16 + lane / 4; // and row + 8, of the warpgroup's 64
  const float scale_log2 = params.scale * kLog2e;
  const AttentionShape& shape = params.shape;
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * shape.batch * shape.groups;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = tile_of<kRange>(params, heads, index, tiles);
    int low[2];
    int high[2];
    float lse[2];
    float delta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int tile_row = warpgroup * 64 + row + 8 * r;
      const int token = tile.token + heads.token(tile_row);
      low[r] = first_key<kRange>(token, params.window);
      high[r] = last_key<kRange>(token);
      const int64_t group_row =
          (static_cast<int64_t>(tile.batch) * shape.sequence + min(token, shape.sequence - 1)) *
              shape.groups +
          tile.group;
      const float* statistics =
          params.tensors.statistics + group_row * 2 * heads.statistics() + heads.head(tile_row);
      lse[r] = statistics[0];
      delta[r] = statistics[heads.statistics()];
    }
    const int all_low = first_key<kRange>(tile.token + heads.tokens(kTileRows) - 1, params.window);
    const int all_high = last_key<kRange>(tile.token);

    uint8_t* rows = shared.queries[query_ring.stage][0] + warpgroup * 64 * kRowBytes;
    const uint32_t q_tile = shared_address(rows);
    const uint32_t d_out_tile = q_tile + kQueryBytes;
    barrier_wait(shared_address(&shared.queries_full[query_ring.stage]), query_ring.phase);
    float scores[32];
    float ds[32];
    float dq[32];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      dq[i] = 0.0f;
    uint32_t ds_operand[16];
    const RowBlocks<kRange> blocks(params, tile.batch, tile.group,
                                   tile.token + heads.token(warpgroup * 64 + row),
                                   tile.token + heads.token(warpgroup * 64 + row + 8));
    // Steps of 64 keys; the last takes 32 when that is enough.
    const bool narrow = tile.keys % kTileKeys > 0 && tile.keys % kTileKeys <= kTileKeys / 2;

    const auto issue_scores = [&](auto keys) {
      multiply_shared<keys.value, 4, Major::kK, Major::kK, false>(
          part<keys.value / 2>(scores), q_tile, shared_address(shared.keys[key_ring.stage][0]));
      wgmma_commit();
    };
    const auto issue_gradients = [&](auto keys) { // of probabilities
      multiply_shared<keys.value, 4, Major::kK, Major::kK, false>(
          part<keys.value / 2>(ds), d_out_tile, shared_address(shared.keys[key_ring.stage][1]));
      wgmma_commit();
    };
    const auto issue_dq = [&](auto keys, int stage) {
      multiply_registers<64, keys.value / 16, Major::kMN, true>(
          dq, part<keys.value / 4>(ds_operand), shared_address(shared.keys[stage][0]));
      wgmma_commit();
    };
    // The exponentials stand before the mask's branch: ptxas does not move the wait for the other
    // products before them.
    const auto to_probabilities = [&](auto keys, int j) {
#pragma unroll
      for (int i = 0; i < keys.value / 2; ++i) {
        scores[i] = exp2_approximate(fmaf(scores[i], scale_log2, -lse[i / 2 % 2]));
      }
#pragma unroll
      for (int part = 0; part < keys.value / kMaskKeys; ++part) { // most need none
        const int key_base = tile.first_key + j * kTileKeys + part * kMaskKeys;
        if (blocks.all_have(j) && key_base >= all_low && key_base + kMaskKeys - 1 <= all_high)
          continue;
        const int last[2] = {blocks.has(0, j) ? high[0] : -1, blocks.has(1, j) ? high[1] : -1};
#pragma unroll
        for (int i = 0; i < kMaskKeys / 2; ++i) {
          const int key = key_base + i / 4 * 8 + 2 * quad + i % 2;
          if (key < low[i / 2 % 2] || key > last[i / 2 % 2])
            scores[part * kMaskKeys / 2 + i] = 0.0f;
        }
      }
    };
    const auto to_score_gradients = [&](auto keys) { // rounded, as operand
#pragma unroll
      for (int i = 0; i < keys.value / 2; ++i)
        ds[i] = scores[i] * (ds[i] - delta[i / 2 % 2]);
      to_operand<keys.value>(part<keys.value / 2>(ds), part<keys.value / 4>(ds_operand));
    };
    const auto first_step = [&](auto keys) {
      barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
      wgmma_fence();
      issue_scores(keys);
      issue_gradients(keys);
      wgmma_wait<1>();
      pin(part<keys.value / 2>(scores));
      to_probabilities(keys, 0);
      wgmma_wait<0>();
      pin(part<keys.value / 2>(ds));
      to_score_gradients(keys);
    };
    const auto next_step = [&](auto keys, int j) {
      const int previous = key_ring.stage;
      key_ring.advance();
      barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
      wgmma_fence();
      issue_scores(keys);
      issue_dq(Keys<kTileKeys>(), previous);
      issue_gradients(keys);
      wgmma_wait<2>();
      pin(part<keys.value / 2>(scores));
      to_probabilities(keys, j); // under the other two products
      wgmma_wait<0>();
      pin(dq);
      pin(part<keys.value / 2>(ds));
      warp_arrive(shared_address(&shared.keys_empty[previous]));
      to_score_gradients(keys);
    };
    const auto last_dq = [&](auto keys) {
      wgmma_fence();
      issue_dq(keys, key_ring.stage);
      wgmma_wait<0>();
      pin(dq);
      warp_arrive(shared_address(&shared.keys_empty[key_ring.stage]));
      key_ring.advance();
    };
    if (tile.key_tiles > 0) {
      first_step(Keys<kTileKeys>());
      const int wide_steps = max(1, tile.key_tiles - (narrow ? 1 : 0));
      for (int j = 1; j < wide_steps; ++j)
        next_step(Keys<kTileKeys>(), j);
      if (wide_steps < tile.key_tiles) {
        next_step(Keys<kTileKeys / 2>(), wide_steps);
        last_dq(Keys<kTileKeys / 2>());
      } else {
        last_dq(Keys<kTileKeys>());
      }
    }
    // Results leave through the query rows, which all four warps have finished reading here.
    named_barrier(1 + warpgroup, 128);
    const int matrix_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 32; ++i)
      dq[i] *= params.scale;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrix(q_tile + swizzled(matrix_row, j + lane / 16),
                   pack_bf16(dq[4 * j], dq[4 * j + 1]), pack_bf16(dq[4 * j + 2], dq[4 * j + 3]),
                   pack_bf16(dq[4 * j + 4], dq[4 * j + 5]),
                   pack_bf16(dq[4 * j + 6], dq[4 * j + 7]));
    }
    __syncwarp(); // a warp reads back only the rows that it stored
    store_rows(rows, tile, params, heads, warpgroup, params.d_q);
    fence_async_proxy();
    warp_arrive(shared_address(&shared.queries_empty[query_ring.stage]));
    query_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

template <KeyRange kRange, typename Heads>
__global__ void __launch_bounds__(kThreads, 1)
    tile_backward_kernel(const __grid_constant__ TileBackwardParams params,
                         const __grid_constant__ CUtensorMap q_map,
                         const __grid_constant__ CUtensorMap d_out_map,
                         const __grid_constant__ CUtensorMap k_map,
                         const __grid_constant__ CUtensorMap v_map, int tiles) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(align_tiles(raw));
  const Heads heads(params.shape.heads);
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  if (threadIdx.x / 128 == kTileConsumers) {
    registers_give_back<32>();
    if (threadIdx.x % 128 == 0)
      produce<kRange>(params, heads, q_map, d_out_map, k_map, v_map, shared, tiles);
  } else {
    registers_take<160>();
    consume<kRange>(params, heads, shared, tiles);
  }
#endif
}

template <KeyRange kRange, typename Heads>
cudaError_t launch(const TileBackwardParams& params, const Heads& heads, int keys,
                   cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int all_heads = shape.groups * heads.count();
  const int tile_tokens = heads.tokens(kTileRows);
  CUtensorMap q_map;
  CUtensorMap d_out_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = make_token_major_map(&q_map, params.tensors.q, shape.batch, shape.sequence,
                                           all_heads, tile_tokens, heads.count());
  if (error == cudaSuccess) {
    error = make_token_major_map(&d_out_map, params.tensors.d_out, shape.batch, shape.sequence,
                                 all_heads, tile_tokens, heads.count());
  }
  // A sequence without compressed tokens loads none, but a descriptor cannot be empty: it names q.
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, keys > 0 ? params.tensors.k : params.tensors.q,
                          keys > 0 ? params.tensors.v : params.tensors.q, shape, std::max(keys, 1),
                          kTileKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(tile_backward_kernel<kRange, Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  }
  if (error != cudaSuccess) return error;
  const int tiles = (params.token_end + tile_tokens - 1) / tile_tokens;
  const int grid = std::min(multiprocessor_count(), tiles * shape.batch * shape.groups);
  return launch_kernel(tile_backward_kernel<kRange, Heads>, grid, kThreads, kSharedBytes, stream,
                       params, q_map, d_out_map, k_map, v_map, tiles);
}

} // namespace

cudaError_t launch_tile_backward(const TileBackwardParams& params, cudaStream_t stream) {
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  if (params.token_end < 1 || params.token_end > params.shape.sequence)
    return cudaErrorInvalidValue;
  if (params.range == KeyRange::kBlocks &&
      (params.indices == nullptr || params.token_end > kMostMaskedTokens))
    return cudaErrorInvalidValue;
  const int compressed = compressed_count(params.shape.sequence);
  return with_heads(params.shape, [&](auto heads) {
    switch (params.range) {
    case KeyRange::kWindow:
      return launch<KeyRange::kWindow>(params, heads, params.shape.sequence, stream);
    case KeyRange::kCompressed:
      return launch<KeyRange::kCompressed>(params, heads, compressed, stream);
    case KeyRange::kBlocks:
      if constexpr (!decltype(heads)::kPads) {
        return launch<KeyRange::kBlocks>(params, heads, params.shape.sequence, stream);
      }
    }
    return cudaErrorInvalidValue;
  });
}

} // namespace nsa::kernels
