// The selected branch, forward: attention of every listed (token, block) pair.
//
//   S = Q K^T / sqrt(d), P = 2^(S log2 e - offset), O = P V / sum(P), lse = offset + log2 sum(P)
//
// This is for a token t and the keys of one selected block, none of them after t. The pair's O and
// lse are a partial result. combine/ merges it with the token's others. A joined unit
// (block_lists/rounds.cuh) has one result for three blocks.
//
// Tile (config.h): a chunk of 32 tokens x 6 heads = 192 query rows against the 64 keys of a block.
//   S      m64n64k64, Q and K from shared memory
//   P      over the block's 64 keys; a row is in the four lanes of a quad
//   O, sum m64n72k64, P from registers, V from shared memory with keys along K, followed by eight
//          columns of ones, which give each lane its rows' sums
// With 128 dimensions, S has twice the depth, O is m64n128k64, and a separate product computes the
// sums.
//
// One CTA an SM, which claims units (claimed_units.cuh).
//   warps 0-11   three computing warpgroups, 64 rows of a chunk each (consumer.cuh). The next
//                chunk's S is issued after this chunk's P V and overlaps with the stores of O.
//   warps 12-15  loading (producer.cuh): each gathers 8 tokens of a chunk, one box of 768 bytes a
//                token. Lane 0 of warp 12 claims units and loads their K and V.
//
// BF16 results are stored through a buffer of the warp, so global stores are whole rows and no
// wider barrier is needed. Packed results (common/packed_slots.h) are stored directly from
// registers, because the four lanes of a row hold its four pieces. Each decision about packing
// depends only on the row's own scores.
//
// barrier         who arrives (count)                     what it protects
// --------------  --------------------------------------  -----------------------------------------
// queries_full    lane 0 of each loading warp, with its   rows, pairs and tokens of a stage have
//                 bytes (4)                               arrived
// queries_empty   each computing warp (12)                the stage may be overwritten
// units.known     the claiming thread (1)                 loading warps may read the unit
// units.full      the claiming thread, with the bytes     computing warps may read the unit, its
//                 of K and V (1)                          keys and values
// units.empty     each loading and computing warp (16)    unit, keys and values may be overwritten

#include "nsa_model/kernels/selected_forward/selected_forward.h"

#include <type_traits>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/selected_forward/consumer.cuh"
#include "nsa_model/kernels/selected_forward/producer.cuh"

namespace nsa::kernels {
namespace selected_forward {
namespace {

template <typename Heads, bool kPacked>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    selected_forward_kernel(const __grid_constant__ SelectedForwardParams params,
                            const __grid_constant__ CUtensorMap q_map,
                            const __grid_constant__ CUtensorMap k_map,
                            const __grid_constant__ CUtensorMap v_map, int blocks) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  constexpr int kDim = Heads::kDim;
  [[maybe_unused]] constexpr int kStages = Stages<kDim, kPacked>::kQueries;
  const Heads heads(params.shape.heads);
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<Heads, kPacked>*>(align_tiles(raw));
  for (int i = threadIdx.x; i < Tile::kOnesRows * kRowBytes / 4; i += Tile::kThreads)
    shared.ones[i / (kRowBytes / 4)][i % (kRowBytes / 4)] = 0x3F803F80u;
  if constexpr (Heads::kPads) { // rows after the last whole token
    const int used = chunk_tokens(heads) * heads.count() * kRowBytes / kVectorBytes;
    for (int stage = 0; stage < kStages; ++stage) {
      constexpr int kPanelVectors = Tile::kPanelBytes / kVectorBytes;
#pragma unroll
      for (int panel = 0; panel < kPanels<kDim>; ++panel) {
        for (int i = used + static_cast<int>(threadIdx.x); i < kPanelVectors; i += Tile::kThreads)
          reinterpret_cast<uint4*>(shared.queries[stage])[panel * kPanelVectors + i] = {};
      }
    }
    const int behind = Shared<Heads, kPacked>::kTokens - chunk_tokens(heads);
    for (int i = threadIdx.x; i < kStages * behind; i += Tile::kThreads) {
      const int token = chunk_tokens(heads) + i % behind;
      shared.pairs[i / behind][token] = -1;
      shared.tokens[i / behind][token] = 0;
    }
  }
  fence_async_proxy();
  if (threadIdx.x == 0) {
    init_ring(shared.queries_full, Tile::kProducerWarps * kWarpArrivals, shared.queries_empty,
              Tile::kConsumerWarps * kWarpArrivals);
    init_units(shared.units, Tile::kProducerWarps, Tile::kConsumerWarps);
    fence_barrier_init();
  }
  __syncthreads();
  UnitRange units = units_of(params.segment_item_start, params.round, blocks);
  if constexpr (kPacked)
    units.joined = params.round.kv_heads * joined_blocks(params).units_of_a_kv_head();
  if (threadIdx.x / kWarpgroupThreads == Tile::kConsumers) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    produce(params, heads, q_map, k_map, v_map, shared, units, blocks);
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    consume(params, heads, shared, blocks);
  }
#endif
}

template <bool kPacked, typename Heads>
cudaError_t launch(const SelectedForwardParams& params, const Heads& heads, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = require_hopper();
  if (error == cudaSuccess) {
    error = make_token_major_map(&q_map, params.q, shape.batch, shape.sequence,
                                 shape.groups * heads.count(), 1, heads.count(), Heads::kDim);
  }
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, params.k, params.v, shape, shape.sequence, kBlock);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(selected_forward_kernel<Heads, kPacked>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedBytes<Heads, kPacked>);
  }
  if (error != cudaSuccess) return error;
  return launch_kernel(selected_forward_kernel<Heads, kPacked>, multiprocessor_count(),
                       Tile::kThreads, kSharedBytes<Heads, kPacked>, stream, params, q_map, k_map,
                       v_map, block_count(shape.sequence));
}

} // namespace
} // namespace selected_forward

cudaError_t launch_selected_forward(const SelectedForwardParams& params, cudaStream_t stream) {
  const bool packed = serves_packed(params.shape);
  if ((params.packed != nullptr) != packed) return cudaErrorInvalidValue;
  return with_heads_of_dim(params.shape, [&](auto heads) {
    return selected_forward::launch<std::is_same_v<decltype(heads), SixHeads>>(params, heads,
                                                                               stream);
  });
}

} // namespace nsa::kernels
