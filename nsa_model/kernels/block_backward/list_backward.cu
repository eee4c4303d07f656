#include <algorithm>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_backward/columns.cuh"
#include "nsa_model/kernels/block_lists/claimed_units.cuh"
#include "nsa_model/kernels/block_lists/list_entries.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"

// One CTA an SM, which claims unit after unit (claimed_units.cuh): a block of 64 keys and part of
// its list of tokens. Two consumer warpgroups take chunks of 16 tokens x 6 heads = 96 query rows
// in turn, each with its own dK and dV accumulators; four producer warps gather their rows (Q, dO,
// statistics), four tokens each. Keys are the M dimension:
//   S^T  = K Q^T            m64n96k64   shared x shared
//   dP^T = V dO^T           m64n96k64   registers, of a unit, x shared
//   P^T  = 2^(S^T - lse)    with the gate folded into lse; dS^T = P^T (dP^T - delta)
//   dV  += P^T dO           m64n64k96   registers x shared
//   dK  += dS^T Q           m64n64k96   registers x shared
//   dQ^T = K^T dS^T         m64n96k64   shared x shared (dS through shared memory)
// At the end of a unit the warpgroups exchange halves through shared memory: one sums dK, the other
// dV. Which warpgroup has a unit's even chunks depends on what the CTA did before; the sum of the
// two halves does not.

namespace nsa::kernels {
namespace {

constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kRows = 96; // 16 tokens x 6 heads
constexpr int kStages = 2 * kConsumers;
constexpr int kBlockStages = 2;
[[maybe_unused]] constexpr int kProducerWarps = 4;
[[maybe_unused]] constexpr int kWarpTokens = kRows / kHeadsPerGroup / kProducerWarps; // six heads
constexpr int kRowsBytes = kRows * kRowBytes;
[[maybe_unused]] constexpr int kTileFloats = kBlock * kHeadDim;
static_assert(kStages % kConsumers == 0, "a stage always serves the same warpgroup");
static_assert(kConsumers == 2, "two warpgroups exchange halves of dK and dV");

template <typename Heads> struct Shared {
  static constexpr int kTokens = Heads::kPads ? kRows + 1 : kRows / kHeadsPerGroup;
  alignas(1024) uint8_t q[kStages][kRowsBytes];
  alignas(1024) uint8_t d_out[kStages][kRowsBytes];
  ClaimedUnits<kBlockStages> units;
  alignas(1024) uint8_t d_scores[kConsumers][kRowsBytes];
  alignas(1024) uint8_t d_queries[kConsumers][kRowsBytes];
  alignas(1024) float4 exchange[kConsumers][8][128];
  alignas(128) float statistics[kStages][chunk_statistics<Heads>(kRows)];
  int32_t pairs[kStages][kTokens]; // row of PairRows * 16 + slot; -1: padding
  int32_t tokens[kStages][kTokens];
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t exchange_full[kConsumers]; // of the half that a warpgroup hands over
  uint64_t exchange_empty[kConsumers];
};
template <typename Heads> constexpr int kSharedBytes = sizeof(Shared<Heads>) + 1024;
static_assert(kSharedBytes<SixHeads> <= kMostSharedBytes &&
              kSharedBytes<AnyHeads> <= kMostSharedBytes);

#if NSA_HOPPER_CODE

struct Unit : UnitPlace {
  int begin; // of the list's entries
  int end;
  __device__ Unit(const SelectedBackwardParams& params, const WorkItem& item, int blocks)
      : UnitPlace(uniform(item.segment), blocks, params.round.cut.sections, params.shape.groups),
        begin(uniform(item.begin)), end(uniform(item.end)) {}
};

template <typename Heads>
__device__ void produce(const SelectedBackwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& d_out_map,
                        const CUtensorMap& k_map, const CUtensorMap& v_map, Shared<Heads>& shared,
                        const UnitRange& units, int blocks) {
  const int chunk_tokens = heads.tokens(kRows);
  const int warp_tokens = (chunk_tokens + kProducerWarps - 1) / kProducerWarps;
  const int token_bytes = heads.count() * kRowBytes;
  const int statistics = 2 * heads.statistics();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  const AttentionShape& shape = params.shape;
  const int null_row = shape.batch * shape.sequence * shape.groups;
  int chunk = 0; // counts through all units
  UnitClaims<kBlockStages> claims(shared.units, units, params.items, params.claims,
                                  warp == 0 && lane == 0);
  for (;;) {
    const WorkItem item =
        claims.next(k_map, v_map, blocks, params.round.cut.sections, shape.groups);
    if (item.segment == kNoSegment) break;
    const Unit unit(params, item, blocks);
    const PairRows pair_rows(shape, params.round, unit.lane);
    const int head = unit.group * heads.count();
    const int chunks = (unit.end - unit.begin + chunk_tokens - 1) / chunk_tokens;
    // Every warp brings its share of every chunk, so that each meets the phases of a stage's
    // barriers one after another.
    const int first = uniform(warp * warp_tokens);
    const int local = first + lane % warp_tokens;
    const bool brings = lane < warp_tokens && local < chunk_tokens;
    const int warp_bytes =
        max(0, min(warp_tokens, chunk_tokens - first)) * (2 * token_bytes + statistics * 4);
    ListEntries entries(params.entries, unit.begin, unit.end, first, chunk_tokens, warp_tokens);
    int position = unit.begin + local;
    for (int i = 0; i < chunks; ++i, position += chunk_tokens) {
      const int entry = entries.next(); // past the end: the last token again, without weight
      const bool listed = position < unit.end;
      const int token = entry / kSlots;
      // The answer comes while the last chunk waits for its stage.
      if (i == chunks - 1) claims.claim();
      const int row =
          listed ? (unit.batch * shape.sequence + token) * shape.groups + unit.group : null_row;
      const EveryLane<Heads, kWarpTokens> its_token(token);
      const EveryLane<Heads, kWarpTokens> its_row(row);
      const int stage = uniform((chunk + i) % kStages);
      const uint32_t full = shared_address(&shared.full[stage]);
      barrier_wait(shared_address(&shared.empty[stage]),
                   (static_cast<uint32_t>((chunk + i) / kStages) & 1u) ^ 1u);
      if (brings) {
        shared.pairs[stage][local] = listed ? pair_rows.row(token) * kSlots + entry % kSlots : -1;
        shared.tokens[stage][local] = token;
      }
      warp_expect(full, warp_bytes);
      __syncwarp();
      const auto load = [&](int place, int from_token, int from_row) {
        tma_load(shared_address(shared.q[stage]) + place * token_bytes, &q_map, 0, head, from_token,
                 unit.batch, full);
        tma_load(shared_address(shared.d_out[stage]) + place * token_bytes, &d_out_map, 0, head,
                 from_token, unit.batch, full);
        bulk_load(shared_address(shared.statistics[stage] + place * statistics),
                  params.tensors.statistics + static_cast<int64_t>(from_row) * statistics,
                  statistics * 4, full);
      };
      if constexpr (Heads::kPads) {
        if (brings) load(local, token, row);
      } else if (elected()) {
#pragma unroll
        for (int j = 0; j < kWarpTokens; ++j)
          load(first + j, its_token.values[j], its_row.values[j]);
      }
    }
    chunk += chunks;
  }
}

// A 64 x 64 tile as an A operand from registers.
__device__ __forceinline__ void load_operand(uint32_t (&a)[16], uint32_t tile, int warp, int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t address =
        tile + swizzled(16 * warp + lane / 8 % 2 * 8 + lane % 8, 2 * step + lane / 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[4 * step]), "=r"(a[4 * step + 1]), "=r"(a[4 * step + 2]),
                   "=r"(a[4 * step + 3])
                 : "r"(address)
                 : "memory");
  }
}

// Address of the 16 bytes that lane `lane` hands to a transposing store of 16 query rows and this
// warp's 16 keys or dimensions, in a tile whose rows are query rows.
__device__ __forceinline__ uint32_t transposed_target(uint32_t tile, int step, int warp, int lane) {
  return tile + swizzled(16 * step + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
}

template <typename Heads>
__device__ void consume(const SelectedBackwardParams& params, const Heads& heads,
                        const CUtensorMap& d_q_map, Shared<Heads>& shared, int blocks) {
  const int chunk_tokens = heads.tokens(kRows);
  constexpr int kSteps = kRows / 16;
  const int warpgroup = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int warp = thread / 32;
  const int quad = lane % 4;
  const int row = warp * 16 + lane / 4; // key of the block, and row + 8
  const float scale_log2 = params.scale * kLog2e;
  const int first_item =
      params.segment_item_start[params.summed.first_list() * blocks]; // of partial_dkv
  float* partial_dkv = params.partial_dkv - static_cast<int64_t>(first_item) * 2 * kTileFloats;
  const Columns<Heads> columns(heads, quad);
  const uint32_t d_scores = shared_address(shared.d_scores[warpgroup]);
  const uint32_t d_queries = uniform(shared_address(shared.d_queries[warpgroup]));
  // Each warp stores dQ of a quarter of the tokens.
  const int warp_tokens = (chunk_tokens + 3) / 4;
  const int first = uniform(warp * warp_tokens);
  const bool stores = lane < warp_tokens && first + lane < chunk_tokens;
  int chunk = 0; // counts through all units; a warpgroup takes every kConsumers-th
  uint32_t exchange_phase = 0;
  Ring<kBlockStages> block_ring;
  for (;;) {
    barrier_wait(shared_address(&shared.units.full[block_ring.stage]), block_ring.phase);
    const WorkItem item = shared.units.items[block_ring.stage];
    // Asked of the lane's own copy: of a uniform one ptxas keeps fewer addresses, and the loop
    // below has 817 instructions instead of 671.
    if (item.segment == kNoSegment) break;
    const int place = uniform(item.index);
    const Unit unit(params, item, blocks);
    const int block_stage = uniform(block_ring.stage);
    const uint32_t k_tile = shared_address(shared.units.keys[block_stage][0]);
    float d_key[32];
    float d_value[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      d_key[i] = 0.0f;
      d_value[i] = 0.0f;
    }
    uint32_t values[16];
    load_operand(values, shared_address(shared.units.keys[block_stage][1]), warp, lane);
    const int chunks = (unit.end - unit.begin + chunk_tokens - 1) / chunk_tokens;
    const int mine = uniform((warpgroup - chunk % kConsumers + kConsumers) % kConsumers);
    for (int i = mine; i < chunks; i += kConsumers) {
      const int stage = uniform((chunk + i) % kStages);
      const uint32_t q_tile = shared_address(shared.q[stage]);
      const uint32_t d_out_tile = shared_address(shared.d_out[stage]);
      const float* statistics = shared.statistics[stage];
      const int32_t* tokens = shared.tokens[stage];
      const int32_t* pairs = shared.pairs[stage];
      barrier_wait(shared_address(&shared.full[stage]),
                   static_cast<uint32_t>((chunk + i) / kStages) & 1u);
      float p[kRows / 2];
      float ds[kRows / 2];
      wgmma_fence();
      multiply_shared<kRows, 4, Major::kK, Major::kK, false>(p, k_tile, q_tile);
      wgmma_commit();
      multiply_registers<kRows, 4, Major::kK, false>(ds, values, d_out_tile);
      wgmma_commit();
      const int target = stores ? pairs[first + lane] : -1; // the pair whose dQ this lane stores
      const EveryLane<Heads, kWarpTokens> its_target(target);
      const bool own = tokens[0] < unit.block * kBlock + kBlock; // they stand first in a list
      wgmma_wait<1>();
      pin(p);
      to_probabilities(p, statistics, columns, scale_log2);
      if (own) {
        const int key = unit.block * kBlock + row;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
          const int token0 = tokens[columns.token(j, 0)];
          const int token1 = tokens[columns.token(j, 1)];
          if (key > token0) p[4 * j] = 0.0f;
          if (key > token1) p[4 * j + 1] = 0.0f;
          if (key + 8 > token0) p[4 * j + 2] = 0.0f;
          if (key + 8 > token1) p[4 * j + 3] = 0.0f;
        }
      }
      uint32_t p_operand[kRows / 4];
      to_operand<kRows>(p, p_operand);
      wgmma_wait<0>();
      pin(ds);
      to_score_gradients(ds, p, statistics, columns);
      uint32_t ds_operand[kRows / 4];
      to_operand<kRows>(ds, ds_operand);
      wgmma_fence();
      multiply_registers<64, kSteps, Major::kMN, true>(d_value, p_operand, d_out_tile);
      multiply_registers<64, kSteps, Major::kMN, true>(d_key, ds_operand, q_tile);
      wgmma_commit();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        store_matrix_transposed(transposed_target(d_scores, step, warp, lane), ds_operand[4 * step],
                                ds_operand[4 * step + 1], ds_operand[4 * step + 2],
                                ds_operand[4 * step + 3]);
      }
      fence_async_proxy();
      wait_for_stores_to_read();
      named_barrier(1 + warpgroup, 128); // dS is whole, and the last chunk's dQ has been read
      float dq[kRows / 2];
      wgmma_fence();
      multiply_shared<kRows, 4, Major::kMN, Major::kK, false>(dq, k_tile, d_scores);
      wgmma_commit();
      wgmma_wait<1>();
      pin(d_value);
      pin(d_key);
      warp_arrive(shared_address(&shared.empty[stage]));
      wgmma_wait<0>();
      pin(dq);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float* value = dq + 8 * step;
        store_matrix_transposed(transposed_target(d_queries, step, warp, lane),
                                pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3]),
                                pack_bf16(value[4], value[5]), pack_bf16(value[6], value[7]));
      }
      fence_async_proxy();
      named_barrier(1 + warpgroup, 128); // dQ is whole, and every warp's product has read dS
      const auto store = [&](int place, int pair) {
        if (pair >= 0)
          tma_store(&d_q_map, 0, 0, pair, 0, d_queries + place * heads.count() * kRowBytes);
      };
      if constexpr (Heads::kPads) {
        if (stores) store(first + lane, target);
      } else if (elected()) {
#pragma unroll
        for (int j = 0; j < kWarpTokens; ++j)
          store(first + j, its_target.values[j]);
      }
      commit_stores();
    }
    chunk += chunks;
    warp_arrive(shared_address(&shared.units.empty[block_ring.stage]));
    block_ring.advance();

    // Warpgroup 0 finishes dK, warpgroup 1 dV: each hands the other half over.
    barrier_wait(shared_address(&shared.exchange_empty[warpgroup]), exchange_phase ^ 1u);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      shared.exchange[warpgroup][i][thread] =
          warpgroup == 0
              ? float4{d_value[4 * i], d_value[4 * i + 1], d_value[4 * i + 2], d_value[4 * i + 3]}
              : float4{d_key[4 * i], d_key[4 * i + 1], d_key[4 * i + 2], d_key[4 * i + 3]};
    }
    warp_arrive(shared_address(&shared.exchange_full[warpgroup]));
    barrier_wait(shared_address(&shared.exchange_full[1 - warpgroup]), exchange_phase);
    float sum[32];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 other = shared.exchange[1 - warpgroup][j][thread];
      const float others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[4 * j + i] = (warpgroup == 0 ? d_key[4 * j + i] : d_value[4 * j + i]) + others[i];
      }
    }
    warp_arrive(shared_address(&shared.exchange_empty[1 - warpgroup]));
    exchange_phase ^= 1u;
    store_tile(partial_dkv + (static_cast<int64_t>(place) * 2 + warpgroup) * kTileFloats, sum,
               warpgroup == 0 ? params.scale : 1.0f, row, quad);
  }
  wait_for_stores();
}

#endif // NSA_HOPPER_CODE

template <typename Heads>
__global__ void __launch_bounds__(kThreads, 1)
    list_backward_kernel(const __grid_constant__ SelectedBackwardParams params,
                         const __grid_constant__ CUtensorMap q_map,
                         const __grid_constant__ CUtensorMap d_out_map,
                         const __grid_constant__ CUtensorMap k_map,
                         const __grid_constant__ CUtensorMap v_map,
                         const __grid_constant__ CUtensorMap d_q_map, int blocks) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  const Heads heads(params.shape.heads);
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<Heads>*>(align_tiles(raw));
  if constexpr (Heads::kPads) { // rows behind the last whole token: zeros, without weight
    const int tokens = heads.tokens(kRows);
    const int used = tokens * heads.count() * kRowBytes / 16;
    for (int stage = 0; stage < kStages; ++stage) {
      for (int i = used + static_cast<int>(threadIdx.x); i < kRowsBytes / 16; i += kThreads) {
        reinterpret_cast<uint4*>(shared.q[stage])[i] = {};
        reinterpret_cast<uint4*>(shared.d_out[stage])[i] = {};
      }
      fill_padding(shared.statistics[stage], heads, tokens);
      for (int i = tokens + static_cast<int>(threadIdx.x); i < Shared<Heads>::kTokens;
           i += kThreads) {
        shared.pairs[stage][i] = -1;
        shared.tokens[stage][i] = 0;
      }
    }
    fence_async_proxy();
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), kProducerWarps * kWarpArrivals);
      barrier_init(shared_address(&shared.empty[i]), 4 * kWarpArrivals);
    }
    init_units(shared.units, kProducerWarps, 4 * kConsumers);
    for (int i = 0; i < kConsumers; ++i) {
      barrier_init(shared_address(&shared.exchange_full[i]), 4 * kWarpArrivals);
      barrier_init(shared_address(&shared.exchange_empty[i]), 4 * kWarpArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const UnitRange units = units_of(params.segment_item_start, params.round, blocks);
  if (threadIdx.x / 128 == kConsumers) {
    setmaxnreg_dec<56>();
    produce(params, heads, q_map, d_out_map, k_map, v_map, shared, units, blocks);
  } else {
    setmaxnreg_inc<224>();
    consume(params, heads, d_q_map, shared, blocks);
  }
#endif
}

template <typename Heads>
cudaError_t launch(const SelectedBackwardParams& params, const Heads& heads, cudaStream_t stream) {
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
                                 1, heads.count());
  }
  if (error == cudaSuccess) {
    error = make_token_major_map(&d_out_map, params.tensors.d_out, shape.batch, shape.sequence,
                                 all_heads, 1, heads.count());
  }
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, params.tensors.k, params.tensors.v, shape, shape.sequence,
                          kBlock);
  }
  if (error == cudaSuccess) { // pairs in the place of tokens
    error =
        make_token_major_map(&d_q_map, params.partial_dq, 1, params.round.listed_rows() * kSlots,
                             heads.count(), 1, heads.count());
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(list_backward_kernel<Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Heads>);
  }
  if (error != cudaSuccess) return error;
  const int grid = std::min(multiprocessor_count(),
                            block_lists_item_capacity(shape, params.round.cut, params.round.lanes));
  return launch_signalling(params.launched, list_backward_kernel<Heads>, grid, kThreads,
                           kSharedBytes<Heads>, stream, params, q_map, d_out_map, k_map, v_map,
                           d_q_map, block_count(shape.sequence));
}

} // namespace

cudaError_t launch_selected_backward(const SelectedBackwardParams& params, cudaStream_t stream) {
  return with_heads(params.shape, [&](auto heads) { return launch(params, heads, stream); });
}

} // namespace nsa::kernels
