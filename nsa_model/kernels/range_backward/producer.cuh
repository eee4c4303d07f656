#pragma once
// The loading warps of dK and dV of intervals. Device code only.

#include "nsa_model/kernels/block_backward/unit_cursor.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/range_backward/config.h"

namespace nsa::kernels::range_backward {

#if NSA_HOPPER_CODE

template <KeyRange kRange> __device__ RangeUnits units_of(const KernelParams& params) {
  return {kRange, params.window, params.token_end, params.kv_heads, static_cast<int>(gridDim.x)};
}

// Each warp loads the statistics of its tokens; the first one also loads the rows.
template <KeyRange kRange, typename Heads>
__device__ void produce(const KernelParams& params, const Heads& heads, const CUtensorMap& q_map,
                        const CUtensorMap& d_out_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared<Heads>& shared) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const int chunk_tokens = heads.tokens(Tile::kRows);
  const int warp_tokens = (chunk_tokens + Tile::kProducerWarps - 1) / Tile::kProducerWarps;
  const int rows_bytes = chunk_tokens * heads.count() * kRowBytes;
  const int statistics = 2 * heads.statistics();
  const int statistics_bytes = statistics * static_cast<int>(sizeof(float));
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x % kWarpgroupThreads / kWarpThreads;
  const int local = warp * warp_tokens + lane % warp_tokens;
  const bool brings = lane < warp_tokens && local < chunk_tokens;
  const int warp_bytes =
      (warp == 0 ? 2 * kPanels<kDim> * rows_bytes : 0) +
      max(0, min(warp_tokens, chunk_tokens - warp * warp_tokens)) * statistics_bytes;
  const AttentionShape& shape = params.shape;
  const int null_row = shape.batch * shape.sequence * shape.groups;
  const RangeUnits units = units_of<kRange>(params);
  Ring<Tile::kRowStages> row_ring;
  Ring<Tile::kKeyStages> key_ring;
  UnitCursor cursor(units, params.first_share, params.past_share);
  RangeUnit unit;
  while (cursor.next(unit)) {
    unit.kv_head += params.first_kv_head;
    const int batch = unit.kv_head / shape.groups;
    const int group = unit.kv_head % shape.groups;
    const int key = unit.column * kUnitKeys;
    const int head = group * heads.count();
    if (warp == 0 && lane == 0) {
      const uint32_t full = shared_address(&shared.keys_full[key_ring.stage]);
      barrier_wait(shared_address(&shared.keys_empty[key_ring.stage]), key_ring.phase ^ 1u);
      shared.units[key_ring.stage] = unit;
      barrier_expect(full, sizeof(shared.keys[0]));
#pragma unroll
      for (int panel = 0; panel < kPanels<kDim>; ++panel) {
        const int offset = panel * Shared<Heads>::kPanelBytes;
        tma_load(shared_address(shared.keys[key_ring.stage][0]) + offset, &k_map,
                 panel * kPanelDims, group, key, batch, full);
        tma_load(shared_address(shared.keys[key_ring.stage][1]) + offset, &v_map,
                 panel * kPanelDims, group, key, batch, full);
      }
    }
    key_ring.advance();
    for (ChunkWalk chunks(unit, chunk_tokens); chunks.left > 0; chunks.advance()) {
      const int begin = chunks.begin;
      const int token = begin + local;
      const int row = (batch * shape.sequence + token) * shape.groups + group;
      const uint32_t full = shared_address(&shared.rows_full[row_ring.stage]);
      barrier_wait(shared_address(&shared.rows_empty[row_ring.stage]), row_ring.phase ^ 1u);
      if (lane == 0) {
        barrier_expect(full, warp_bytes);
      }
      __syncwarp();
      if (brings) {
        bulk_load(shared_address(shared.statistics[row_ring.stage] + local * statistics),
                  params.tensors.statistics +
                      static_cast<int64_t>(token < unit.end ? row : null_row) * statistics,
                  statistics_bytes, full);
      }
      if (warp == 0 && lane == 0) {
#pragma unroll
        for (int panel = 0; panel < kPanels<kDim>; ++panel) {
          const int offset = panel * Tile::kRows * kRowBytes;
          tma_load(shared_address(shared.q[row_ring.stage]) + offset, &q_map, panel * kPanelDims,
                   head, begin, batch, full);
          tma_load(shared_address(shared.d_out[row_ring.stage]) + offset, &d_out_map,
                   panel * kPanelDims, head, begin, batch, full);
        }
      }
      row_ring.advance();
    }
  }
  if (warp == 0 && lane == 0) {
    barrier_wait(shared_address(&shared.keys_empty[key_ring.stage]), key_ring.phase ^ 1u);
    shared.units[key_ring.stage] = {};
    barrier_arrive(shared_address(&shared.keys_full[key_ring.stage]));
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::range_backward
