#pragma once
// The computing warpgroups of the selected branch's backward. They process the CTA's units. Device
// code only.

#include "nsa_model/kernels/list_backward/parts.cuh"
#include "nsa_model/kernels/list_backward/producer.cuh"

namespace nsa::kernels::list_backward {

#if NSA_HOPPER_CODE

// Address that the partial result of item 0 would have: the buffer begins with the round's first
// item.
template <int kDim>
__device__ __forceinline__ float* partial_of_item_0(const SelectedBackwardParams& params,
                                                    int blocks) {
  const int first_item = params.segment_item_start[params.reduced.first_list() * blocks];
  return params.partial_dkv - static_cast<int64_t>(first_item) * 2 * kBlock * kDim;
}

// Starts dP = V dO^T. V of 64 dimensions is in registers, that of 128 in shared memory.
template <int kDim>
__device__ __forceinline__ void
issue_probability_gradients(Scores<kDim>& dp, const TileOperand& values, uint32_t v_tile,
                            uint32_t d_out_tile, int row_panel_bytes) {
  using Tile = TileOf<kDim>;
  if constexpr (Tile::kHoldsValues) {
    multiply_registers<Tile::kRows, kPanelSteps, Major::kK, false>(dp, values, d_out_tile);
  } else {
    multiply_rows<Tile::kRows, kDim>(dp, v_tile, kBlock * kRowBytes, d_out_tile, row_panel_bytes);
  }
  wgmma_commit();
}

// Clears the probabilities of tokens before `key` and, in the lane's other row, before key + 8.
template <int kRows, typename Columns>
__device__ __forceinline__ void mask_later_keys(float (&p)[kLaneFloats<kRows>],
                                                const Columns& columns, const int32_t* tokens,
                                                int key) {
#pragma unroll
  for (int j = 0; j < kRows / kGroupColumns; ++j) {
    const int token0 = tokens[columns.token(j, 0)];
    const int token1 = tokens[columns.token(j, 1)];
    if (key > token0) p[kGroupFloats * j] = 0.0f;
    if (key > token1) p[kGroupFloats * j + 1] = 0.0f;
    if (key + kRowsApart > token0) p[kGroupFloats * j + 2] = 0.0f;
    if (key + kRowsApart > token1) p[kGroupFloats * j + 3] = 0.0f;
  }
}

// Warpgroup 0 finishes dK, warpgroup 1 dV. Each hands over its other half.
template <int kDim, typename Heads>
__device__ __forceinline__ void exchange_sums(Shared<Heads>& shared, int thread, int warpgroup,
                                              uint32_t& phase, Sums<kDim>& d_key,
                                              Sums<kDim>& d_value, Sums<kDim>& sum) {
  for_exchanges<kDim>([&](auto from) {
    barrier_wait(shared_address(&shared.exchange_empty[warpgroup]), phase ^ 1u);
    hand_over<kDim, from.value>(shared.exchange[warpgroup], thread, warpgroup == 0, d_key, d_value);
    warp_arrive(shared_address(&shared.exchange_full[warpgroup]));
    barrier_wait(shared_address(&shared.exchange_full[1 - warpgroup]), phase);
    take_over<kDim, from.value>(shared.exchange[1 - warpgroup], thread, warpgroup == 0, d_key,
                                d_value, sum);
    warp_arrive(shared_address(&shared.exchange_empty[1 - warpgroup]));
    phase ^= 1u;
  });
}

template <typename Heads>
__device__ void consume(const SelectedBackwardParams& params, const Heads& heads,
                        const CUtensorMap& d_q_map, Shared<Heads>& shared, int blocks) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  constexpr int kPanelBytes = Shared<Heads>::kPanelBytes; // bytes of a panel of rows
  constexpr int kKeyPanelBytes = kBlock * kRowBytes;
  constexpr int kResultFloats = kBlock * kDim; // floats of dK, or of dV, of a unit
  const int chunk_tokens = heads.tokens(Tile::kRows);
  const int warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = thread / kWarpThreads;
  const int row = warp * kWarpRows + lane / 4; // key in the block; the lane's other key is row + 8
  const float scale_log2 = params.scale * kLog2e;
  float* partial_dkv = partial_of_item_0<kDim>(params, blocks);
  const Columns<Heads> columns(heads, lane % 4);
  const uint32_t d_scores = shared_address(shared.d_scores[warpgroup]);
  const uint32_t d_queries = uniform(shared_address(shared.d_queries[warpgroup]));
  // Each warp stores dQ of a quarter of the tokens.
  const int warp_tokens = (chunk_tokens + kWarpgroupWarps - 1) / kWarpgroupWarps;
  const int first = uniform(warp * warp_tokens);
  const bool stores = lane < warp_tokens && first + lane < chunk_tokens;
  int chunk = 0; // counts through all units; a warpgroup processes every kConsumers-th
  uint32_t exchange_phase = 0;
  Ring<Tile::kKeyStages> key_ring;
  for (;;) {
    barrier_wait(shared_address(&shared.units.full[key_ring.stage]), key_ring.phase);
    const WorkItem item = shared.units.items[key_ring.stage];
    // The test reads the lane's own copy. With a uniform copy ptxas keeps fewer addresses in
    // registers, and the loop below has 817 instructions instead of 671.
    if (item.segment == kNoSegment) break;
    const int place = uniform(item.index);
    const Unit unit(params, item, blocks);
    const int key_stage = uniform(key_ring.stage);
    const uint32_t k_tile = shared_address(shared.units.keys[key_stage][0]);
    const uint32_t v_tile = shared_address(shared.units.keys[key_stage][1]);
    Sums<kDim> d_key, d_value;
    zero(d_key);
    zero(d_value);
    [[maybe_unused]] TileOperand values;
    if constexpr (Tile::kHoldsValues) load_operand(values, v_tile, warp, lane);
    const int chunks = (unit.end - unit.begin + chunk_tokens - 1) / chunk_tokens;
    const int mine =
        uniform((warpgroup - chunk % Tile::kConsumers + Tile::kConsumers) % Tile::kConsumers);
    for (int i = mine; i < chunks; i += Tile::kConsumers) {
      const int stage = uniform((chunk + i) % Tile::kRowStages);
      const uint32_t q_tile = shared_address(shared.q[stage]);
      const uint32_t d_out_tile = shared_address(shared.d_out[stage]);
      const float* statistics = shared.statistics[stage];
      const int32_t* tokens = shared.tokens[stage];
      barrier_wait(shared_address(&shared.rows_full[stage]),
                   static_cast<uint32_t>((chunk + i) / Tile::kRowStages) & 1u);
      Scores<kDim> p, ds;
      wgmma_fence();
      multiply_rows<Tile::kRows, kDim>(p, k_tile, kKeyPanelBytes, q_tile, kPanelBytes);
      wgmma_commit();
      issue_probability_gradients<kDim>(ds, values, v_tile, d_out_tile, kPanelBytes);
      // The pair whose dQ this lane stores.
      const int target = stores ? shared.pairs[stage][first + lane] : -1;
      const EveryLane<Heads, kWarpTokens<kDim>> its_target(target);
      const bool own = tokens[0] < unit.block * kBlock + kBlock; // own tokens come first in a list
      wgmma_wait<1>();
      pin(p);
      to_probabilities(p, statistics, columns, scale_log2);
      if (own) mask_later_keys<Tile::kRows>(p, columns, tokens, unit.block * kBlock + row);
      RowsOperand<kDim> p_operand;
      to_operand<Tile::kRows>(p, p_operand);
      wgmma_wait<0>();
      pin(ds);
      to_score_gradients(ds, p, statistics, columns);
      RowsOperand<kDim> ds_operand;
      to_operand<Tile::kRows>(ds, ds_operand);
      wgmma_fence();
      add_rows<kDim, kRowSteps<kDim>>(d_value, p_operand, d_out_tile, kPanelBytes);
      add_rows<kDim, kRowSteps<kDim>>(d_key, ds_operand, q_tile, kPanelBytes);
      wgmma_commit();
      store_transposed<kDim>(ds_operand, d_scores, warp, lane);
      fence_async_proxy();
      wait_for_stores_to_read();
      // dS is complete, and the last chunk's dQ has been read.
      named_barrier(1 + warpgroup, kWarpgroupThreads);
      // Starts dQ of a panel. The first panel overlaps with the sums.
      Scores<kDim> dq;
      const auto issue_query_gradients = [&](int panel) {
        wgmma_fence();
        multiply_shared<Tile::kRows, kKeySteps, Major::kMN, Major::kK, false>(
            dq, k_tile + panel * kKeyPanelBytes, d_scores);
        wgmma_commit();
      };
      issue_query_gradients(0);
      wgmma_wait<1>();
      pin(d_value);
      pin(d_key);
      warp_arrive(shared_address(&shared.rows_empty[stage]));
      wgmma_wait<0>();
      pin(dq);
      keep_query_gradients<kDim>(dq, d_queries, warp, lane);
#pragma unroll
      for (int panel = 1; panel < kPanels<kDim>; ++panel) {
        issue_query_gradients(panel);
        wgmma_wait<0>();
        pin(dq);
        keep_query_gradients<kDim>(dq, d_queries + panel * kPanelBytes, warp, lane);
      }
      store_query_gradients(d_q_map, d_queries, heads, warpgroup, lane, first, stores, target,
                            its_target);
    }
    chunk += chunks;
    warp_arrive(shared_address(&shared.units.empty[key_ring.stage]));
    key_ring.advance();
    Sums<kDim> sum;
    exchange_sums<kDim>(shared, thread, warpgroup, exchange_phase, d_key, d_value, sum);
    store_tile<kDim>(partial_dkv + (static_cast<int64_t>(place) * 2 + warpgroup) * kResultFloats,
                     sum, warpgroup == 0 ? params.scale : 1.0f, row, lane % 4);
  }
  wait_for_stores();
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::list_backward
