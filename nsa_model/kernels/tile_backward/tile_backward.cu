// dQ of the branches whose keys are one interval, query-major, so that a row's gradient is summed
// in registers: no atomics, deterministic.
//
//   S = Q K^T, P = 2^(S log2 e / sqrt(d) - lse), the gate folded into lse
//   dP = dO V^T, dS = P (dP - delta), delta = <dO, O>, dQ = dS K / sqrt(d)
//
// A pass may have several branches' keys: the window's, then the compressed ones, then for tokens
// near the start those of the selected branch. A row's Q and dO serve all, the first tile of a
// branch follows the last of the one before like any other, and one sum leaves.
//
// Tile (config.h): 32 tokens x 6 heads = 192 query rows; steps of 64 keys, the last may take 32.
//   S, dP  m64n64k64, both operands from shared memory
//   dQ     m64n64k64, dS from registers, K with keys along the contraction
// For heads of 128 dimensions a tile has 128 rows and two computing warpgroups, warps 0-7. Its
// products are m64n64k128 and m64n128k64.
//
// One CTA an SM, persistent over tiles.
//   warps 0-11   three computing warpgroups, 64 rows each (consumer.cuh). The next tile's S is
//                issued before this tile's dQ and the next dP after it: both run under the next
//                exponentials.
//   warp 12      one thread loads Q, dO and runs ahead through the keys of all parts.
//   warps 13-15  nothing: they give their registers away.
//
// barrier          who arrives (count)                 what it protects
// ---------------  ----------------------------------  --------------------------------------------
// queries_full     the loading thread, with bytes (1)  a tile's Q and dO are there
// queries_empty    each computing warp (12 or 8)       its dQ has left, the rows may go
// keys_full        the loading thread, with bytes (1)  K and V of a step are there
// keys_empty       each computing warp (12 or 8)       the step's products have read them
// named 1 to 3     the warpgroup's 128 threads         its rows have been read: dQ may replace Q

#include "nsa_model/kernels/tile_backward/tile_backward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/tile_backward/consumer.cuh"

namespace nsa::kernels {
namespace tile_backward {
namespace {

#if NSA_HOPPER_CODE

template <typename KeyPass, typename Heads>
__device__ void produce(const KernelParams& params, const Heads& heads, const Maps& maps,
                        Shared<Heads::kDim>& shared, int tiles) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  Ring<Tile::kQueryStages> query_ring;
  Ring<Tile::kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  const int query_bytes = heads.tokens(Tile::kRows) * heads.count() * kRowBytes;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = part_of<KeyPass, 0>(params, heads, index, tiles);
    const uint32_t query_full = shared_address(&shared.queries_full[query_ring.stage]);
    const int head = tile.group * heads.count();
    barrier_wait(shared_address(&shared.queries_empty[query_ring.stage]), query_ring.phase ^ 1u);
    barrier_expect(query_full, 2 * kPanels<kDim> * query_bytes);
#pragma unroll
    for (int panel = 0; panel < kPanels<kDim>; ++panel) {
      const int offset = panel * Tile::kRows * kRowBytes;
      tma_load(shared_address(shared.queries[query_ring.stage][0]) + offset, &maps.q,
               panel * kPanelDims, head, tile.token, tile.batch, query_full);
      tma_load(shared_address(shared.queries[query_ring.stage][1]) + offset, &maps.d_out,
               panel * kPanelDims, head, tile.token, tile.batch, query_full);
    }
    query_ring.advance();
    for_parts<KeyPass>([&](auto part) {
      load_keys<kDim>(part_of<KeyPass, part.value>(params, heads, index, tiles), maps.k[part.value],
                      maps.v[part.value], shared, key_ring);
    });
  }
}

#endif // NSA_HOPPER_CODE

template <typename KeyPass, typename Heads>
__global__ void __launch_bounds__(TileOf<Heads::kDim>::kThreads, 1)
    tile_backward_kernel(const __grid_constant__ KernelParams params,
                         const __grid_constant__ Maps maps, int tiles) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<Heads::kDim>*>(align_tiles(raw));
  const Heads heads(params.shape.heads);
  if constexpr (KeyPass::kStatistics) make_null_row(params.prepare, heads);
  divide_warpgroups<TileOf<Heads::kDim>>(
      shared, [&] { produce<KeyPass>(params, heads, maps, shared, tiles); },
      [&] { consume<KeyPass>(params, heads, shared, tiles); });
#endif
}

// K and V of each part, and how many rows they have.
struct PartKeys {
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  int count;
};

template <typename KeyPass, typename OwnHeads>
cudaError_t launch(const KernelParams& params, const BlockBackwardTensors& queries,
                   const PartKeys (&keys)[KeyPass::kParts], const OwnHeads& /*heads*/,
                   cudaStream_t stream, cudaEvent_t launched = nullptr) {
  using Heads = TileHeads<OwnHeads>;
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const Heads heads(params.shape.heads);
  const AttentionShape& shape = params.shape;
  const int all_heads = shape.groups * heads.count();
  const int tile_tokens = heads.tokens(Tile::kRows);
  Maps maps = {};
  cudaError_t error = make_token_major_map(&maps.q, queries.q, shape.batch, shape.sequence,
                                           all_heads, tile_tokens, heads.count(), kDim);
  if (error == cudaSuccess) {
    error = make_token_major_map(&maps.d_out, queries.d_out, shape.batch, shape.sequence, all_heads,
                                 tile_tokens, heads.count(), kDim);
  }
  for (int part = 0; part < KeyPass::kParts && error == cudaSuccess; ++part) {
    // A sequence without compressed tokens loads none, but a descriptor cannot be empty: it names
    // q.
    const bool any = keys[part].count > 0;
    error = make_key_maps(&maps.k[part], &maps.v[part], any ? keys[part].k : queries.q,
                          any ? keys[part].v : queries.q, shape, std::max(keys[part].count, 1),
                          kTileKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(tile_backward_kernel<KeyPass, Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<kDim>);
  }
  if (error != cudaSuccess) return error;
  const int tiles = (params.parts[0].token_end + tile_tokens - 1) / tile_tokens;
  const int grid = std::min(multiprocessor_count(), tiles * shape.batch * shape.groups);
  return launch_signalling(launched, tile_backward_kernel<KeyPass, Heads>, grid, Tile::kThreads,
                           kSharedBytes<kDim>, stream, params, maps, tiles);
}

} // namespace
} // namespace tile_backward

cudaError_t launch_tile_backward(const TileBackwardParams& params, cudaStream_t stream) {
  using namespace tile_backward;
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  if (params.token_end < 1 || params.token_end > params.shape.sequence)
    return cudaErrorInvalidValue;
  if (params.range == KeyRange::kBlocks &&
      (params.indices == nullptr || params.token_end > kMostMaskedTokens))
    return cudaErrorInvalidValue;
  const BlockBackwardTensors& tensors = params.tensors;
  const KernelParams kernel = {.shape = params.shape,
                               .parts = {{params.window, params.token_end, tensors.statistics}},
                               .scale = params.scale,
                               .indices = params.indices,
                               .d_q = params.d_q};
  const bool compressed = params.range == KeyRange::kCompressed;
  const PartKeys keys[] = {
      {tensors.k, tensors.v,
       compressed ? compressed_count(params.shape.sequence) : params.shape.sequence}};
  return with_heads_of_dim(params.shape, [&](auto heads) {
    switch (params.range) {
    case KeyRange::kWindow:
      return launch<KeyPass<KeyRange::kWindow>>(kernel, tensors, keys, heads, stream,
                                                params.launched);
    case KeyRange::kCompressed:
      return launch<KeyPass<KeyRange::kCompressed>>(kernel, tensors, keys, heads, stream,
                                                    params.launched);
    case KeyRange::kBlocks:
      if constexpr (decltype(heads)::kMasks) {
        return launch<KeyPass<KeyRange::kBlocks>>(kernel, tensors, keys, heads, stream,
                                                  params.launched);
      }
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t launch_joint_backward(const JointBackwardParams& params, cudaStream_t stream) {
  using namespace tile_backward;
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  const AttentionShape& shape = params.shape;
  const int first_tokens = params.selected_tokens;
  const bool masked = params.indices != nullptr;
  if (first_tokens > shape.sequence || (masked && first_tokens > kMostMaskedTokens))
    return cudaErrorInvalidValue;
  KernelParams kernel = {.shape = shape,
                         .parts = {{kWindow, shape.sequence, params.window.statistics},
                                   {kWindow, params.compressed_keys ? shape.sequence : 0,
                                    params.compressed.statistics},
                                   {2 * kMaxSequence, first_tokens, nullptr}},
                         .scale = params.scale,
                         .indices = params.indices,
                         .prepare = params.prepare,
                         .d_q = params.d_q};
  const PartKeys window = {params.window.k, params.window.v, shape.sequence};
  const PartKeys compressed = {params.compressed.k, params.compressed.v,
                               compressed_count(shape.sequence)};
  const PartKeys selected = {params.selected.k, params.selected.v, shape.sequence};
  const PartKeys two[] = {window, compressed};
  const PartKeys three[] = {window, compressed, selected};
  return with_heads_of_dim(shape, [&](auto heads) {
    if (first_tokens == 0) return launch<JointPass<>>(kernel, params.window, two, heads, stream);
    if (!masked) {
      return launch<JointPass<KeyRange::kWindow>>(kernel, params.window, three, heads, stream);
    }
    if constexpr (decltype(heads)::kMasks) {
      return launch<JointPass<KeyRange::kBlocks>>(kernel, params.window, three, heads, stream);
    }
    return cudaErrorInvalidValue;
  });
}

} // namespace nsa::kernels
