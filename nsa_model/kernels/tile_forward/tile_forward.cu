// Attention of a branch whose keys are one interval, query-major: sliding window, compressed,
// causal, and the selected branch of the first tokens as a causal interval with a mask of blocks.
//
//   S = Q K^T / sqrt(d), m = max(S), P = 2^((S - m) log2 e), O = P V / sum(P),
//   lse = m + ln sum(P), over the keys that a row sees; -inf and 0 if it sees none
//
// Tile (config.h): 32 tokens x 6 heads = 192 query rows, ordered [token][head]. So one K/V tile
// serves all heads of the group without padding. Steps have 128 keys; the last may be narrower.
//   S   m64n128k64, from shared memory
//   O   m64n64k128, P from registers
// With 128 dimensions, steps have 64 keys: m64n64k128 and m64n128k64.
//
// One CTA an SM, persistent over tiles.
//   warps 0-11   three computing warpgroups, 64 rows each (consumer.cuh). The next keys' S is
//                issued together with these keys' P V, which overlaps with the softmax.
//   warp 12      one thread loads queries, and tiles and their keys in advance.
//   warps 13-15  do nothing; they release their registers.
//
// barrier          who arrives (count)                 what it protects
// ---------------  ----------------------------------  --------------------------------------------
// queries_full     the loading thread, with bytes (1)  a tile's rows have arrived
// queries_empty    each computing warp (12)            its results are stored; the rows may be
//                                                      overwritten
// keys_full        the loading thread, with bytes (1)  K and V of a step have arrived
// keys_empty       each computing warp (12)            the step's products have read them
// named 1 to 3     the warpgroup's 128 threads         its rows have been read: results may replace
//                                                      them

#include "nsa_model/kernels/tile_forward/tile_forward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/tile_forward/config.h"
#include "nsa_model/kernels/tile_forward/consumer.cuh"

namespace nsa::kernels {
namespace tile_forward {
namespace {

#if NSA_HOPPER_CODE

// One stage holds two boxes of 64 keys: 128 keys, or 64 in two panels.
template <int kDim>
__device__ __forceinline__ void load_wide_keys(const QueryTile& tile, const CUtensorMap& k_map,
                                               const CUtensorMap& v_map, Shared<kDim>& shared,
                                               Ring<TileOf<kDim>::kKeyStages>& ring) {
  constexpr bool kPaneled = kPanels<kDim> > 1;
  for (int done = 0; done < tile.keys; done += TileOf<kDim>::kKeys) {
    const int boxes = kPaneled || tile.keys - done > kTileKeys ? 2 : 1;
    const uint32_t full = shared_address(&shared.keys_full[ring.stage]);
    barrier_wait(shared_address(&shared.keys_empty[ring.stage]), ring.phase ^ 1u);
    barrier_expect(full, boxes * 2 * kTileKeyBytes);
    for (int box = 0; box < boxes; ++box) {
      const int key = tile.first_key + done + (kPaneled ? 0 : box * kTileKeys);
      const int dim = kPaneled ? box * kPanelDims : 0;
      const uint32_t k_tile = shared_address(shared.keys[ring.stage][0]) + box * kTileKeyBytes;
      tma_load(k_tile, &k_map, dim, tile.group, key, tile.batch, full);
      tma_load(k_tile + 2 * kTileKeyBytes, &v_map, dim, tile.group, key, tile.batch, full);
    }
    ring.advance();
  }
}

template <KeyRange kRange, typename Heads>
__device__ void produce(const TileForwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared<Heads::kDim>& shared, int tiles) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  Ring<Tile::kQueryStages> query_ring;
  Ring<Tile::kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  const int query_bytes = heads.tokens(Tile::kRows) * heads.count() * kRowBytes;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = tile_of<Tile, kRange>(params, heads, index, tiles);
    const uint32_t query_full = shared_address(&shared.queries_full[query_ring.stage]);
    barrier_wait(shared_address(&shared.queries_empty[query_ring.stage]), query_ring.phase ^ 1u);
    barrier_expect(query_full, kPanels<kDim> * query_bytes);
#pragma unroll
    for (int panel = 0; panel < kPanels<kDim>; ++panel) {
      tma_load(shared_address(shared.queries[query_ring.stage]) + panel * Tile::kRows * kRowBytes,
               &q_map, panel * kPanelDims, tile.group * heads.count(), tile.token, tile.batch,
               query_full);
    }
    query_ring.advance();
    load_wide_keys<kDim>(tile, k_map, v_map, shared, key_ring);
  }
}

#endif // NSA_HOPPER_CODE

template <KeyRange kRange, bool kGated, typename Heads>
__global__ void __launch_bounds__(TileOf<Heads::kDim>::kThreads, 1)
    tile_forward_kernel(const __grid_constant__ TileForwardParams params,
                        const __grid_constant__ CUtensorMap q_map,
                        const __grid_constant__ CUtensorMap k_map,
                        const __grid_constant__ CUtensorMap v_map, int tiles) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  extern __shared__ uint8_t raw[];
  using Tile = TileOf<Heads::kDim>;
  auto& shared = *reinterpret_cast<Shared<Heads::kDim>*>(align_tiles(raw));
  const Heads heads(params.shape.heads);
  divide_warpgroups<Tile>(
      shared, [&] { produce<kRange>(params, heads, q_map, k_map, v_map, shared, tiles); },
      [&] { consume<kRange, kGated>(params, heads, shared, tiles); });
#endif
}

template <KeyRange kRange, typename Heads>
cudaError_t launch(const TileForwardParams& params, const Heads& heads, int keys,
                   cudaStream_t stream) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const AttentionShape& shape = params.shape;
  auto* kernel = tile_forward_kernel<kRange, false, Heads>;
  if constexpr (kRange != KeyRange::kCompressed) {
    if (params.gated.sum != nullptr) kernel = tile_forward_kernel<kRange, true, Heads>;
  }
  const int tile_tokens = heads.tokens(Tile::kRows);
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error =
      make_token_major_map(&q_map, params.q, shape.batch, shape.sequence,
                           shape.groups * heads.count(), tile_tokens, heads.count(), kDim);
  // A sequence without compressed tokens loads none. A descriptor cannot be empty, so it refers to
  // q.
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, keys > 0 ? params.k : params.q,
                          keys > 0 ? params.v : params.q, shape, std::max(keys, 1), kTileKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedBytes<kDim>);
  }
  if (error != cudaSuccess) return error;
  const int tiles = (params.token_end + tile_tokens - 1) / tile_tokens;
  const int most = std::max(1, multiprocessor_count() - params.leave_ctas);
  const int grid = std::min(most, tiles * shape.batch * shape.groups);
  return launch_kernel(kernel, grid, Tile::kThreads, kSharedBytes<kDim>, stream, params, q_map,
                       k_map, v_map, tiles);
}

} // namespace
} // namespace tile_forward

cudaError_t launch_tile_forward(const TileForwardParams& params, cudaStream_t stream) {
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  if (params.token_end < 1 || params.token_end > params.shape.sequence)
    return cudaErrorInvalidValue;
  if (params.range == KeyRange::kBlocks &&
      (params.indices == nullptr || params.token_end > kMostMaskedTokens))
    return cudaErrorInvalidValue;
  const int compressed = compressed_count(params.shape.sequence);
  return with_heads_of_dim(params.shape, [&](auto heads) {
    switch (params.range) {
    case KeyRange::kWindow:
      return tile_forward::launch<KeyRange::kWindow>(params, heads, params.shape.sequence, stream);
    case KeyRange::kCompressed:
      return tile_forward::launch<KeyRange::kCompressed>(params, heads, compressed, stream);
    case KeyRange::kBlocks:
      if constexpr (decltype(heads)::kMasks) {
        return tile_forward::launch<KeyRange::kBlocks>(params, heads, params.shape.sequence,
                                                       stream);
      }
    }
    return cudaErrorInvalidValue;
  });
}

} // namespace nsa::kernels
