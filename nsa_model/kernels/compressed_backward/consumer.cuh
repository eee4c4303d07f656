#pragma once
// The computing warpgroups of the compressed branch's backward. Each has 64 keys and processes
// every chunk of the unit's query rows. It also has half of a chunk's rows, whose dQ it computes
// over the keys of both. Device code only.

#include "nsa_model/kernels/compressed_backward/config.h"

namespace nsa::kernels::compressed_backward {

#if NSA_HOPPER_CODE

inline constexpr int kRows = Tile::kRows;
using Scores = float[kLaneFloats<kRows>];
using Operand = uint32_t[kLaneFloats<kRows> / 2];
using RowStatistics = float2[kLaneFloats<kRows> / kGroupFloats];
using Sums = float[kLaneFloats<kHeadDim>];
using QuerySums = float[kLaneFloats<Tile::kOwnRows>];
using QueryScales = float[kLaneFloats<Tile::kOwnRows> / kGroupFloats];

// Sets the probabilities of (key, token) pairs that do not see each other to zero.
__device__ __forceinline__ void mask(Scores& p, int key0, const Columns<SixHeads>& columns,
                                     int chunk_token) {
#pragma unroll
  for (int j = 0; j < kRows / kGroupColumns; ++j) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int token = chunk_token + columns.token(j, column);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (token < first_token<KeyRange::kCompressed>(key0 + kRowsApart * r))
          p[kGroupFloats * j + 2 * r + column] = 0.0f;
      }
    }
  }
}
template <int kCount> __device__ __forceinline__ void zero(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums)
    sum = 0.0f;
}
// Where a lane stores a row of a matrix of dS^T, so that dS lies there with rows along M or N.
__device__ __forceinline__ uint32_t transposed_target(uint32_t tile, int step, int warp, int lane) {
  const int matrix = lane / kMatrixRows;
  const int row = kWgmmaDepth * step + matrix / 2 * kMatrixRows + lane % kMatrixRows;
  return tile + swizzled(row, warp * 2 + matrix % 2);
}
__device__ __forceinline__ void store_transposed(const Operand& operand, uint32_t tile, int warp,
                                                 int lane) {
#pragma unroll
  for (int step = 0; step < kRows / kWgmmaDepth; ++step) {
    store_matrix_transposed(transposed_target(tile, step, warp, lane), operand[4 * step],
                            operand[4 * step + 1], operand[4 * step + 2], operand[4 * step + 3]);
  }
}

// The whole numbers of dQ before those of a warpgroup's half of a chunk.
__device__ __forceinline__ int64_t sums_before(const KernelParams& params, int kv_head, int token,
                                               int warpgroup) {
  const int chunk = (token - params.first_token) / Tile::kTokens;
  return ((static_cast<int64_t>(kv_head) * params.chunks + chunk) * Tile::kConsumers + warpgroup) *
         Tile::kSums;
}
// Starts scores = keys rows^T.
__device__ __forceinline__ void issue_product(Scores& scores, uint32_t keys, const uint8_t* rows) {
  multiply_shared<kRows, 4, Major::kK, Major::kK, false>(scores, keys, shared_address(rows));
  wgmma_commit();
}
// Starts dV += P^T dO, dK += dS^T Q.
__device__ __forceinline__ void issue_sums(Sums& d_value, Sums& d_key, const Operand& p,
                                           const Operand& ds, const uint8_t* d_out,
                                           const uint8_t* q) {
  add_rows<kHeadDim, kRows / kWgmmaDepth>(d_value, p, shared_address(d_out), 0);
  add_rows<kHeadDim, kRows / kWgmmaDepth>(d_key, ds, shared_address(q), 0);
  wgmma_commit();
}
// Starts dQ^T = K^T dS^T of a warpgroup's half of the rows, over the keys of both warpgroups.
__device__ __forceinline__ void issue_query_gradients(QuerySums& dq, uint32_t keys,
                                                      uint32_t scores) {
  multiply_shared<Tile::kOwnRows, 4, Major::kMN, Major::kK, false>(dq, keys, scores);
  multiply_shared<Tile::kOwnRows, 4, Major::kMN, Major::kK, true>(dq, keys + kBlock * kRowBytes,
                                                                  scores + Tile::kRowsBytes);
  wgmma_commit();
}
// Waits for the scores, which are the last product but one, and makes probabilities of them.
__device__ __forceinline__ void make_probabilities(Scores& p, const float* statistics,
                                                   const Columns<SixHeads>& columns,
                                                   float scale_log2, int key_base, int row,
                                                   int chunk_token) {
  RowStatistics lse;
  load_pairs<kLaneFloats<kRows>>(lse, [&](int j) { return columns.lse(statistics, j); });
  wgmma_wait<1>();
  pin(p);
  to_probabilities(p, lse, scale_log2);
  if (chunk_token < first_token<KeyRange::kCompressed>(key_base + kBlock - 1))
    mask(p, key_base + row, columns, chunk_token);
}
// Waits for dP and makes dS of it.
__device__ __forceinline__ void make_score_gradients(Scores& ds, Operand& operand, const Scores& p,
                                                     const float* statistics,
                                                     const Columns<SixHeads>& columns) {
  RowStatistics delta;
  load_pairs<kLaneFloats<kRows>>(delta, [&](int j) { return columns.delta(statistics, j); });
  wgmma_wait<0>();
  pin(ds);
  to_score_gradients(ds, p, delta);
  to_operand<kRows>(ds, operand);
}
__device__ __forceinline__ void load_scales(QueryScales& scales, const float* statistics,
                                            const Columns<SixHeads>& columns, int warpgroup) {
#pragma unroll
  for (int j = 0; j < Tile::kOwnRows / kGroupColumns; ++j)
    scales[j] = statistics[(warpgroup * Tile::kTokens / 2 + columns.token(j, 0)) * kRowStatistics +
                           kScaleStatistic];
}
// Adds a warpgroup's part of dQ to the sums in memory, as whole numbers that lie in `numbers` until
// they are copied.
__device__ __forceinline__ void add_queries(const QuerySums& dq, const QueryScales& scales,
                                            int4* numbers, int32_t* target, int warpgroup,
                                            int thread) {
#pragma unroll
  for (int j = 0; j < Tile::kOwnRows / kGroupColumns; ++j) {
    numbers[j * kWarpgroupThreads + thread] = {
        __float2int_rn(dq[4 * j] * scales[j]), __float2int_rn(dq[4 * j + 1] * scales[j]),
        __float2int_rn(dq[4 * j + 2] * scales[j]), __float2int_rn(dq[4 * j + 3] * scales[j])};
  }
  fence_async_proxy();
  if (thread == 0) wait_for_adds_to_read<Tile::kStaging - 2>();
  // All numbers are stored, and the last copy has read the other buffer.
  named_barrier(1 + warpgroup, kWarpgroupThreads);
  if (thread == 0) {
    bulk_add(target, shared_address(numbers), Tile::kSums * sizeof(int32_t));
    commit_stores();
  }
}

__device__ void consume(const KernelParams& params, const SixHeads& heads, Shared& shared) {
  const int warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int warp = thread / kWarpThreads;
  const int lane = threadIdx.x % kWarpThreads, quad = lane % 4;
  const int row = warp * kWarpRows + lane / 4;
  const float scale_log2 = params.scale * kLog2e;
  const Columns<SixHeads> columns(heads, quad);
  int chunk = 0; // counts through all units
  Ring<Tile::kKeyStages> key_ring;
  Ring<Tile::kScoreStages> write_ring; // dS that is written next
  Ring<Tile::kScoreStages> read_ring;  // dS that is read next
  int staging = 0;
  while (true) {
    barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
    const RangeUnit& unit = shared.units[key_ring.stage];
    ChunkWalk chunks(unit);
    if (chunks.left == 0) break;
    const int key_base = uniform(unit.column) * kUnitKeys + warpgroup * kBlock;
    const uint32_t all_keys = shared_address(shared.keys[uniform(key_ring.stage)][0]);
    const uint32_t k_tile = all_keys + warpgroup * kBlock * kRowBytes;
    const uint32_t v_tile = k_tile + sizeof(shared.keys[0][0]);
    int32_t* target =
        params.sums + sums_before(params, uniform(unit.kv_head), chunks.begin, warpgroup);
    Sums d_key, d_value;
    zero(d_key);
    zero(d_value);
    Scores p, ds;
    QuerySums dq;
    Operand p_operand, ds_operand;
    QueryScales scales;
    int stage = 0;
    const auto wait_for_chunk = [&] {
      stage = uniform(chunk % Tile::kRowStages);
      barrier_wait(shared_address(&shared.rows_full[stage]),
                   static_cast<uint32_t>(chunk / Tile::kRowStages) & 1u);
    };
    const auto add_sums = [&](int from) {
      issue_sums(d_value, d_key, p_operand, ds_operand, shared.d_out[from], shared.q[from]);
    };
    const auto issue_queries = [&] {
      issue_query_gradients(dq, all_keys,
                            shared_address(shared.d_scores[uniform(read_ring.stage)][0]) +
                                warpgroup * Tile::kOwnRows * kRowBytes);
    };
    const auto probabilities = [&, &begin = chunks.begin] {
      make_probabilities(p, shared.statistics[stage], columns, scale_log2, key_base, row, begin);
    };
    const auto score_gradients = [&] {
      make_score_gradients(ds, ds_operand, p, shared.statistics[stage], columns);
      barrier_wait(shared_address(&shared.scores_empty[write_ring.stage]), write_ring.phase ^ 1u);
      store_transposed(ds_operand,
                       shared_address(shared.d_scores[uniform(write_ring.stage)][warpgroup]), warp,
                       lane);
      fence_async_proxy();
      warp_arrive(shared_address(&shared.scores_full[write_ring.stage]));
      write_ring.advance();
    };
    // dQ of the last chunk; its product is complete.
    const auto query_gradients = [&] {
      pin(dq);
      warp_arrive(shared_address(&shared.scores_empty[read_ring.stage]));
      read_ring.advance();
      add_queries(dq, scales, shared.sums[staging][warpgroup], target, warpgroup, thread);
      target += Tile::kConsumers * Tile::kSums;
      staging = staging + 1 == Tile::kStaging ? 0 : staging + 1;
    };
    const auto wait_for_scores = [&] {
      barrier_wait(shared_address(&shared.scores_full[read_ring.stage]), read_ring.phase);
    };
    wait_for_chunk();
    wgmma_fence();
    issue_product(p, k_tile, shared.q[stage]);
    issue_product(ds, v_tile, shared.d_out[stage]);
    probabilities();
    to_operand<kRows>(p, p_operand);
    score_gradients();
    ++chunk;
    chunks.advance();
    for (; chunks.left > 0; ++chunk, chunks.advance()) {
      const int previous = stage;
      wait_for_chunk();
      wgmma_fence();
      issue_product(p, k_tile, shared.q[stage]);
      add_sums(previous);
      probabilities(); // overlaps with the sums
      load_scales(scales, shared.statistics[previous], columns, warpgroup);
      wgmma_wait<0>();
      pin(d_value);
      pin(d_key);
      warp_arrive(shared_address(&shared.rows_empty[previous]));
      wait_for_scores();
      wgmma_fence();
      issue_queries();
      issue_product(ds, v_tile, shared.d_out[stage]);
      to_operand<kRows>(p, p_operand);
      wgmma_wait<1>();
      query_gradients(); // overlaps with dP
      score_gradients();
    }
    load_scales(scales, shared.statistics[stage], columns, warpgroup);
    wait_for_scores();
    wgmma_fence();
    add_sums(stage);
    issue_queries();
    wgmma_wait<0>();
    pin(d_value);
    pin(d_key);
    warp_arrive(shared_address(&shared.rows_empty[stage]));
    query_gradients();
    constexpr int kResultFloats = kBlock * kHeadDim;
    float* result = params.partial_dkv +
                    ((unit.slot - params.first_slot) * kUnitTiles + warpgroup) * 2 * kResultFloats;
    warp_arrive(shared_address(&shared.keys_empty[key_ring.stage]));
    store_tile<kHeadDim>(result, d_key, params.scale, row, quad);
    store_tile<kHeadDim>(result + kResultFloats, d_value, 1.0f, row, quad);
    key_ring.advance();
  }
  if (thread == 0) wait_for_stores(); // the additions are complete before the kernel ends
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::compressed_backward
