// dK and dV of branches whose keys are one interval, KV-major: a CTA keeps the sums of 128 keys in
// registers and visits the tokens that see them. No atomics, deterministic.
//
//   S^T = K Q^T, P^T = 2^(S^T log2 e / sqrt(d) - lse), the gate folded into lse
//   dP^T = V dO^T, dS^T = P^T (dP^T - delta), delta = <dO, O>
//   dV = P^T dO, dK = dS^T Q / sqrt(d)
//
// Tile (config.h): 128 keys against chunks of 16 tokens x 6 heads = 96 query rows. Keys are the M
// dimension. So six heads need no padding, and the rows' statistics belong to columns.
//   S^T, dP^T  m64n96k64, both operands from shared memory
//   dV, dK     m64n64k96, P^T and dS^T from registers, dO and Q with rows along the contraction
// With 128 dimensions, chunks have 8 tokens: m64n48k128 and m64n128k48.
//
// One CTA an SM, persistent over units (block_backward/range_units.cuh): 128 keys and a range of
// tokens.
//   warps 0-7    two computing warpgroups, 64 keys each (consumer.cuh). Both process every chunk,
//                so a chunk is loaded once for 128 keys. The next chunk's S^T is issued with this
//                chunk's sums, which overlap with the next exponentials.
//   warps 8-11   loading (producer.cuh): each loads the statistics of four tokens, warp 8 also the
//                rows. Lane 0 of warp 8 finds the units and loads their keys.
//
// barrier       who arrives (count)                     what it protects
// ------------  --------------------------------------  -------------------------------------------
// rows_full     lane 0 of each loading warp, with its   a chunk's Q, dO and statistics have arrived
//               bytes (4)
// rows_empty    each computing warp (8)                 the chunk's sums have read them
// keys_full     lane 0 of warp 8, with bytes (1)        the unit, its K and V may be read
// keys_empty    each computing warp (8)                 unit, K and V may be overwritten

#include "nsa_model/kernels/block_backward/block_backward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/range_backward/consumer.cuh"
#include "nsa_model/kernels/range_backward/producer.cuh"

namespace nsa::kernels {
namespace range_backward {
namespace {

template <KeyRange kRange, bool kDirect, typename Heads>
__global__ void __launch_bounds__(TileOf<Heads::kDim>::kThreads, 1)
    range_backward_kernel(const __grid_constant__ KernelParams params,
                          const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap d_out_map,
                          const __grid_constant__ CUtensorMap k_map,
                          const __grid_constant__ CUtensorMap v_map) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  using Tile = TileOf<Heads::kDim>;
  const Heads heads(params.shape.heads);
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<Heads>*>(align_tiles(raw));
  if constexpr (Heads::kPads) { // rows after the last whole token are zero and have no weight
    const int tokens = heads.tokens(Tile::kRows);
    const int used = tokens * heads.count() * kRowBytes / kVectorBytes;
    for (int stage = 0; stage < Tile::kRowStages; ++stage) {
      zero_rows<Tile>(shared, used, stage);
      fill_padding(shared.statistics[stage], heads, tokens);
    }
    fence_async_proxy();
  }
  if (threadIdx.x == 0) {
    constexpr int kEmpties = Tile::kConsumerWarps * kWarpArrivals;
    init_ring(shared.rows_full, Tile::kProducerWarps, shared.rows_empty, kEmpties);
    init_ring(shared.keys_full, 1, shared.keys_empty, kEmpties);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x / kWarpgroupThreads == Tile::kConsumers) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    produce<kRange>(params, heads, q_map, d_out_map, k_map, v_map, shared);
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    consume<kRange, kDirect>(params, heads, shared);
  }
#endif
}

template <KeyRange kRange, bool kDirect = false, typename Heads>
cudaError_t launch(const KernelParams& params, const Heads& heads, int keys, int ctas,
                   cudaStream_t stream) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const AttentionShape& shape = params.shape;
  const int all_heads = shape.groups * heads.count();
  const int chunk_tokens = heads.tokens(Tile::kRows);
  CUtensorMap q_map;
  CUtensorMap d_out_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = make_token_major_map(&q_map, params.tensors.q, shape.batch, shape.sequence,
                                           all_heads, chunk_tokens, heads.count(), kDim);
  if (error == cudaSuccess) {
    error = make_token_major_map(&d_out_map, params.tensors.d_out, shape.batch, shape.sequence,
                                 all_heads, chunk_tokens, heads.count(), kDim);
  }
  if (error == cudaSuccess) {
    error =
        make_key_maps(&k_map, &v_map, params.tensors.k, params.tensors.v, shape, keys, kUnitKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(range_backward_kernel<kRange, kDirect, Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Heads>);
  }
  if (error != cudaSuccess) return error;
  return launch_kernel(range_backward_kernel<kRange, kDirect, Heads>, ctas, Tile::kThreads,
                       kSharedBytes<Heads>, stream, params, q_map, d_out_map, k_map, v_map);
}

} // namespace
} // namespace range_backward

int range_workers(int most_ctas) {
  constexpr int kWithoutDevice = 132; // callers may ask for sizes without a GPU
  const int multiprocessors = multiprocessor_count();
  const int all = multiprocessors > 0 ? multiprocessors : kWithoutDevice;
  return most_ctas > 0 ? std::min(most_ctas, all) : all;
}

int64_t range_backward_tiles(const AttentionShape& shape, KeyRange range, int window, int token_end,
                             const BesideKvHeads& beside, int workers) {
  const int kv_heads = shape.batch * shape.groups;
  int64_t slots = 0;
  if (beside.kv_heads > 0) {
    const int ctas = beside.ctas > 0 ? std::min(beside.ctas, workers) : workers;
    slots += RangeUnits(range, window, token_end, beside.kv_heads, ctas).slots();
  }
  if (beside.kv_heads < kv_heads) {
    slots += RangeUnits(range, window, token_end, kv_heads - beside.kv_heads, workers).slots();
  }
  return slots * kUnitTiles;
}

bool range_backward_is_whole(const AttentionShape& shape, KeyRange range, int window, int token_end,
                             int workers) {
  return RangeUnits(range, window, token_end, shape.batch * shape.groups, workers).whole;
}

int range_backward_columns(const AttentionShape& shape, int window, int workers) {
  return RangeUnits(KeyRange::kWindow, window, shape.sequence, shape.batch * shape.groups, workers)
      .shares();
}

cudaError_t launch_range_backward(const RangeBackwardParams& params, cudaStream_t stream) {
  using namespace range_backward;
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  if (range_backward_tiles(params.shape, params.range, params.window, params.token_end) == 0)
    return cudaSuccess; // the sequence has no compressed tokens
  // The division into units depends on the size of the grid: one CTA a worker.
  const BesideKvHeads& beside = params.beside;
  const int all_kv_heads = params.shape.batch * params.shape.groups;
  const int first_kv_head = params.is_beside ? 0 : beside.kv_heads;
  const int kv_heads = params.is_beside ? beside.kv_heads : all_kv_heads - first_kv_head;
  if (kv_heads == 0) return cudaSuccess;
  int ctas = range_workers(params.is_beside ? beside.ctas : params.most_ctas);
  const RangeUnits units(params.range, params.window, params.token_end, kv_heads, ctas);
  int64_t tiles_before = 0;
  if (first_kv_head > 0) {
    AttentionShape before = params.shape; // shape of the KV heads in the other launch
    before.batch = 1;
    before.groups = beside.kv_heads;
    tiles_before =
        range_backward_tiles(before, params.range, params.window, params.token_end, beside);
  }
  const bool some = params.first_column > 0 || params.columns > 0;
  if ((params.d_k != nullptr && !units.whole) || (params.d_k == nullptr && some))
    return cudaErrorInvalidValue; // a column has several results
  const int past = params.columns > 0
                       ? std::min(params.first_column + params.columns, units.shares())
                       : units.shares();
  if (params.first_column >= past && units.whole) return cudaSuccess;
  if (some && params.most_ctas == 0) ctas = past - params.first_column;
  const KernelParams kernel = {.shape = params.shape,
                               .tensors = params.tensors,
                               .window = params.window,
                               .token_end = params.token_end,
                               .scale = params.scale,
                               .partial_dkv = params.partial_dkv == nullptr
                                                  ? nullptr
                                                  : params.partial_dkv + tiles_before * 2 * kBlock *
                                                                             params.shape.head_dim,
                               .d_k = params.d_k,
                               .d_v = params.d_v,
                               .first_share = params.first_column,
                               .past_share = past,
                               .first_kv_head = first_kv_head,
                               .kv_heads = kv_heads};
  const int compressed = compressed_count(params.shape.sequence);
  return with_heads_of_dim(params.shape, [&](auto heads) {
    switch (params.range) {
    case KeyRange::kWindow:
      return params.d_k == nullptr
                 ? launch<KeyRange::kWindow>(kernel, heads, params.shape.sequence, ctas, stream)
                 : launch<KeyRange::kWindow, true>(kernel, heads, params.shape.sequence, ctas,
                                                   stream);
    case KeyRange::kCompressed:
      return launch<KeyRange::kCompressed>(kernel, heads, compressed, ctas, stream);
    case KeyRange::kBlocks:
      if constexpr (decltype(heads)::kMasks) {
        return params.d_k == nullptr
                   ? launch<KeyRange::kBlocks>(kernel, heads, params.shape.sequence, ctas, stream)
                   : launch<KeyRange::kBlocks, true>(kernel, heads, params.shape.sequence, ctas,
                                                     stream);
      }
    }
    return cudaErrorInvalidValue;
  });
}

} // namespace nsa::kernels
