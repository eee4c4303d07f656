// The selected branch, backward: dK and dV of a block's keys over the tokens that selected it, and
// dQ of every (token, block) pair. No atomics on results, deterministic.
//
//   S^T = K Q^T, P^T = 2^(S^T log2 e / sqrt(d) - lse), the gate folded into lse
//   dP^T = V dO^T, dS^T = P^T (dP^T - delta), delta = <dO, O>
//   dV = P^T dO, dK = dS^T Q / sqrt(d), dQ = dS K, before the scale
//
// Tile (config.h): the 64 keys of a block against chunks of 16 tokens x 6 heads = 96 query rows.
// Keys are the M dimension. So six heads need no padding, and the rows' statistics belong to
// columns.
//   S^T     m64n96k64, K and Q from shared memory
//   dP^T    m64n96k64, V from registers of the unit, dO from shared memory
//   dV, dK  m64n64k96, P^T and dS^T from registers, dO and Q with rows along the contraction
//   dQ^T    m64n96k64, K and dS from shared memory, to which dS is written for it
// With 128 dimensions, chunks have 8 tokens and V is in shared memory: m64n48k128, m64n128k48, and
// for dQ^T one m64n48k64 after another.
//
// One CTA an SM, which claims units (claimed_units.cuh): a block and part of its list.
//   warps 0-7    two computing warpgroups (consumer.cuh), which process chunks in turn. Each has
//                its own dK and dV. At the end of a unit they exchange halves: one sums dK, the
//                other dV. Which of them has the even chunks depends on the CTA's previous units;
//                the sum of the two halves does not.
//   warps 8-11   loading (producer.cuh): each gathers Q, dO and statistics of four tokens. Lane 0
//                of warp 8 claims units and loads their K and V.
//
// barrier         who arrives (count)                     what it protects
// --------------  --------------------------------------  -----------------------------------------
// rows_full       lane 0 of each loading warp, with its   rows, statistics, pairs and tokens of a
//                 bytes (4)                               chunk have arrived
// rows_empty      each warp of the chunk's warpgroup (4)  the chunk's sums have read them
// units.known     the claiming thread (1)                 loading warps may read the unit
// units.full      the claiming thread, with the bytes     computing warps may read the unit, its
//                 of K and V (1)                          keys and values
// units.empty     each loading and computing warp (12)    unit, keys and values may be overwritten
// exchange_full   each warp of the giving warpgroup (4)   a half of dK and dV may be read
// exchange_empty  each warp of the other warpgroup (4)    it has been read
// named 1 and 2   the warpgroup's 128 threads             dS is complete and the last dQ has been
//                                                         read; then dQ is complete and dS has been
//                                                         read

#include "nsa_model/kernels/block_backward/block_backward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/list_backward/consumer.cuh"
#include "nsa_model/kernels/list_backward/producer.cuh"

namespace nsa::kernels {
namespace list_backward {
namespace {

template <typename Heads>
__global__ void __launch_bounds__(TileOf<Heads::kDim>::kThreads, 1)
    list_backward_kernel(const __grid_constant__ SelectedBackwardParams params,
                         const __grid_constant__ CUtensorMap q_map,
                         const __grid_constant__ CUtensorMap d_out_map,
                         const __grid_constant__ CUtensorMap k_map,
                         const __grid_constant__ CUtensorMap v_map,
                         const __grid_constant__ CUtensorMap d_q_map, int blocks) {
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
      for (int i = tokens + static_cast<int>(threadIdx.x); i < Shared<Heads>::kTokens;
           i += Tile::kThreads) {
        shared.pairs[stage][i] = -1;
        shared.tokens[stage][i] = 0;
      }
    }
    fence_async_proxy();
  }
  if (threadIdx.x == 0) {
    constexpr int kWarpgroupArrivals = kWarpgroupWarps * kWarpArrivals;
    init_ring(shared.rows_full, Tile::kProducerWarps * kWarpArrivals, shared.rows_empty,
              kWarpgroupArrivals);
    init_units(shared.units, Tile::kProducerWarps, Tile::kConsumerWarps);
    init_ring(shared.exchange_full, kWarpgroupArrivals, shared.exchange_empty, kWarpgroupArrivals);
    fence_barrier_init();
  }
  __syncthreads();
  const UnitRange units = units_of(params.segment_item_start, params.round, blocks);
  if (threadIdx.x / kWarpgroupThreads == Tile::kConsumers) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    produce(params, heads, q_map, d_out_map, k_map, v_map, shared, units, blocks);
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    consume(params, heads, d_q_map, shared, blocks);
  }
#endif
}

template <typename Heads>
cudaError_t launch(const SelectedBackwardParams& params, const Heads& heads, cudaStream_t stream) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const AttentionShape& shape = params.shape;
  const int all_heads = shape.groups * heads.count();
  CUtensorMap q_map;
  CUtensorMap d_out_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap d_q_map;
  cudaError_t error = require_hopper();
  if (error == cudaSuccess) {
    error = make_token_major_map(&q_map, params.tensors.q, shape.batch, shape.sequence, all_heads,
                                 1, heads.count(), kDim);
  }
  if (error == cudaSuccess) {
    error = make_token_major_map(&d_out_map, params.tensors.d_out, shape.batch, shape.sequence,
                                 all_heads, 1, heads.count(), kDim);
  }
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, params.tensors.k, params.tensors.v, shape, shape.sequence,
                          kBlock);
  }
  if (error == cudaSuccess) { // the token dimension of this map counts pairs
    error =
        make_token_major_map(&d_q_map, params.partial_dq, 1, params.round.listed_rows() * kSlots,
                             heads.count(), 1, heads.count(), kDim);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(list_backward_kernel<Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Heads>);
  }
  if (error != cudaSuccess) return error;
  const int grid =
      std::min(multiprocessor_count(),
               block_lists_item_capacity(shape, params.round.cut, params.round.kv_heads));
  return launch_signalling(params.launched, list_backward_kernel<Heads>, grid, Tile::kThreads,
                           kSharedBytes<Heads>, stream, params, q_map, d_out_map, k_map, v_map,
                           d_q_map, block_count(shape.sequence));
}

} // namespace
} // namespace list_backward

cudaError_t launch_selected_backward(const SelectedBackwardParams& params, cudaStream_t stream) {
  return with_heads_of_dim(
      params.shape, [&](auto heads) { return list_backward::launch(params, heads, stream); });
}

} // namespace nsa::kernels
