#include "nsa_model/kernels/tile_forward/tile_forward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/query_tiles.cuh"
#include "nsa_model/kernels/common/tensor_map.h"

// A tile is 32 tokens x 6 heads = 192 query rows, ordered [token][head], so that one K/V tile
// serves all heads of the group without padding. One CTA an SM, persistent: a producer warp runs
// ahead through tiles and their K/V tiles of 64 keys; three consumer warpgroups own 64 rows each:
//   S = Q K^T   m64n64k64 from shared memory          next tile's S is issued together with
//   O += P V    m64n64k64, P from registers           the previous tile's P V, which the softmax
//   hides
// Tiles are handed out longest first.

namespace nsa::kernels {
namespace {

constexpr int kThreads = 128 * (kTileConsumers + 1);
constexpr int kQueryStages = 2;
constexpr int kKeyStages = 7;
constexpr int kQueryBytes = kTileRows * kRowBytes;

struct Shared {
  alignas(1024) uint8_t queries[kQueryStages][kQueryBytes];
  alignas(1024) uint8_t keys[kKeyStages][2][kTileKeyBytes]; // K, V
  alignas(8) uint64_t queries_full[kQueryStages];
  uint64_t queries_empty[kQueryStages];
  uint64_t keys_full[kKeyStages];
  uint64_t keys_empty[kKeyStages];
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;

#if NSA_HOPPER_CODE

template <KeyRange kRange, typename Heads>
__device__ void produce(const TileForwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared& shared, int tiles) {
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  const int query_bytes = heads.tokens(kTileRows) * heads.count() * kRowBytes;
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const QueryTile tile = tile_of<kRange>(params, heads, index, tiles);
    const uint32_t query_full = shared_address(&shared.queries_full[query_ring.stage]);
    barrier_wait(shared_address(&shared.queries_empty[query_ring.stage]), query_ring.phase ^ 1u);
    barrier_expect(query_full, query_bytes);
    load_box(shared_address(shared.queries[query_ring.stage]), &q_map, 0,
             tile.group * heads.count(), tile.token, tile.batch, query_full);
    query_ring.advance();
    load_keys(tile, k_map, v_map, shared, key_ring);
  }
}

// Running softmax of the two rows that a thread shares with its quad. Works on raw scores; the
// scale is folded into the exponent.
struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};

  // Turns scores into unnormalised probabilities; returns in `factor` what earlier sums and outputs
  // are multiplied by.
  __device__ __forceinline__ void update(float (&scores)[32], float scale_log2,
                                         float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = maximum[r];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        peak = fmaxf(peak, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      }
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
      const float offset = peak == -INFINITY ? 0.0f : peak * scale_log2; // a row may see no key yet
      factor[r] = exp2_approximate(fmaf(maximum[r], scale_log2, -offset));
      maximum[r] = peak;
      float partial = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[4 * j + 2 * r + c];
          score = exp2_approximate(fmaf(score, scale_log2, -offset));
          partial += score;
        }
      }
      sum[r] = fmaf(sum[r], factor[r], partial);
    }
  }
};

template <KeyRange kRange, typename Heads>
__device__ void consume(const TileForwardParams& params, const Heads& heads, Shared& shared,
                        int tiles) {
  const int warpgroup = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const int row = thread / 32 * 16 + lane / 4; // and row + 8, of the warpgroup's 64
  const float scale_log2 = params.scale * kLog2e;
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const QueryTile tile = tile_of<kRange>(params, heads, index, tiles);
    const int token0 = tile.token + heads.token(warpgroup * 64 + row);
    const int token1 = tile.token + heads.token(warpgroup * 64 + row + 8);
    const int low[2] = {first_key<kRange>(token0, params.window),
                        first_key<kRange>(token1, params.window)};
    const int high[2] = {last_key<kRange>(token0), last_key<kRange>(token1)};
    // Keys that every row of the tile sees need no mask.
    const int all_low = first_key<kRange>(tile.token + heads.tokens(kTileRows) - 1, params.window);
    const int all_high = last_key<kRange>(tile.token);

    uint8_t* rows = shared.queries[query_ring.stage] + warpgroup * 64 * kRowBytes;
    const uint32_t q_tile = shared_address(rows);
    barrier_wait(shared_address(&shared.queries_full[query_ring.stage]), query_ring.phase);
    Softmax softmax;
    float scores[32];
    float out[32];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      out[i] = 0.0f;
    uint32_t probabilities[16];
    const RowBlocks<kRange> blocks(params, tile.batch, tile.group, token0, token1);
    const auto mask = [&](int j) {
      const int key_base = tile.first_key + j * kTileKeys;
      if (blocks.all_have(j) && key_base >= all_low && key_base + kTileKeys - 1 <= all_high) return;
      const int last[2] = {blocks.has(0, j) ? high[0] : -1, blocks.has(1, j) ? high[1] : -1};
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = key_base + i / 4 * 8 + 2 * quad + i % 2;
        if (key < low[i / 2 % 2] || key > last[i / 2 % 2]) scores[i] = -INFINITY;
      }
    };
    float factor[2];
    if (tile.key_tiles > 0) {
      barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
      wgmma_fence();
      multiply_shared<64, 4, Major::kK, Major::kK, false>(
          scores, q_tile, shared_address(shared.keys[key_ring.stage][0]));
      wgmma_commit();
      wgmma_wait<0>();
      pin(scores);
      mask(0);
      softmax.update(scores, scale_log2, factor);
      to_operand<64>(scores, probabilities);
      for (int j = 1; j < tile.key_tiles; ++j) {
        const int previous = key_ring.stage;
        key_ring.advance();
        barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
        wgmma_fence();
        multiply_shared<64, 4, Major::kK, Major::kK, false>(
            scores, q_tile, shared_address(shared.keys[key_ring.stage][0]));
        wgmma_commit();
        multiply_registers<64, 4, Major::kMN, true>(out, probabilities,
                                                    shared_address(shared.keys[previous][1]));
        wgmma_commit();
        wgmma_wait<1>();
        pin(scores);
        mask(j);
        softmax.update(scores, scale_log2, factor);
        wgmma_wait<0>();
        pin(out);
        warp_arrive(shared_address(&shared.keys_empty[previous]));
#pragma unroll
        for (int i = 0; i < 32; ++i)
          out[i] *= factor[i / 2 % 2];
        to_operand<64>(scores, probabilities);
      }
      wgmma_fence();
      multiply_registers<64, 4, Major::kMN, true>(out, probabilities,
                                                  shared_address(shared.keys[key_ring.stage][1]));
      wgmma_commit();
      wgmma_wait<0>();
      pin(out);
      warp_arrive(shared_address(&shared.keys_empty[key_ring.stage]));
      key_ring.advance();
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = softmax.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[r] = sum > 0.0f ? reciprocal_approximate(sum) : 0.0f;
      const int tile_row = warpgroup * 64 + row + 8 * r;
      const int token = r == 0 ? token0 : token1;
      if (quad == 0 && token < params.token_end && !is_padding(heads, tile_row)) {
        const int64_t group_row =
            (static_cast<int64_t>(tile.batch) * params.shape.sequence + token) *
                params.shape.groups +
            tile.group;
        const int64_t target = group_row * heads.count() + heads.head(tile_row);
        params.lse[target] =
            sum > 0.0f ? kLn2 * fmaf(softmax.maximum[r], scale_log2, log2_approximate(sum))
                       : -INFINITY;
      }
    }
    // Results leave through the query rows, which all four warps have finished reading here.
    named_barrier(1 + warpgroup, 128);
    const int matrix_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrix(q_tile + swizzled(matrix_row, j + lane / 16),
                   pack_bf16(out[4 * j] * inverse[0], out[4 * j + 1] * inverse[0]),
                   pack_bf16(out[4 * j + 2] * inverse[1], out[4 * j + 3] * inverse[1]),
                   pack_bf16(out[4 * j + 4] * inverse[0], out[4 * j + 5] * inverse[0]),
                   pack_bf16(out[4 * j + 6] * inverse[1], out[4 * j + 7] * inverse[1]));
    }
    __syncwarp(); // a warp reads back only the rows that it stored
    store_rows(rows, tile, params, heads, warpgroup, params.out);
    fence_async_proxy();
    warp_arrive(shared_address(&shared.queries_empty[query_ring.stage]));
    query_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

template <KeyRange kRange, typename Heads>
__global__ void __launch_bounds__(kThreads, 1)
    tile_forward_kernel(const __grid_constant__ TileForwardParams params,
                        const __grid_constant__ CUtensorMap q_map,
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
    if (threadIdx.x % 128 == 0) produce<kRange>(params, heads, q_map, k_map, v_map, shared, tiles);
  } else {
    registers_take<160>();
    consume<kRange>(params, heads, shared, tiles);
  }
#endif
}

template <KeyRange kRange, typename Heads>
cudaError_t launch(const TileForwardParams& params, const Heads& heads, int keys,
                   cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int tile_tokens = heads.tokens(kTileRows);
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error =
      make_token_major_map(&q_map, params.q, shape.batch, shape.sequence,
                           shape.groups * heads.count(), tile_tokens, heads.count());
  // A sequence without compressed tokens loads none, but a descriptor cannot be empty: it names q.
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, keys > 0 ? params.k : params.q,
                          keys > 0 ? params.v : params.q, shape, std::max(keys, 1), kTileKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(tile_forward_kernel<kRange, Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  }
  if (error != cudaSuccess) return error;
  const int tiles = (params.token_end + tile_tokens - 1) / tile_tokens;
  const int grid = std::min(multiprocessor_count(), tiles * shape.batch * shape.groups);
  return launch_kernel(tile_forward_kernel<kRange, Heads>, grid, kThreads, kSharedBytes, stream,
                       params, q_map, k_map, v_map, tiles);
}

} // namespace

cudaError_t launch_tile_forward(const TileForwardParams& params, cudaStream_t stream) {
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
