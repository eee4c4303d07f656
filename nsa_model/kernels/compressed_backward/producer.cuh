#pragma once
// The loading warps of the compressed branch's backward. Device code only.

#include "nsa_model/kernels/block_backward/unit_cursor.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/compressed_backward/config.h"

namespace nsa::kernels::compressed_backward {

#if NSA_HOPPER_CODE

__device__ inline RangeUnits units_of(const AttentionShape& shape) {
  return {KeyRange::kCompressed,       0,         shape.sequence, shape.batch * shape.groups,
          static_cast<int>(gridDim.x), kRoundRows};
}

// Each warp loads the statistics of its tokens; the first one also loads the rows.
__device__ void produce(const KernelParams& params, const CUtensorMap& q_map,
                        const CUtensorMap& d_out_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared& shared) {
  constexpr int kWarpTokens = Tile::kTokens / Tile::kProducerWarps;
  constexpr int kStatisticsBytes = kRowStatistics * static_cast<int>(sizeof(float));
  static_assert(kHeadDim == kPanelDims, "a row is one panel");
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x % kWarpgroupThreads / kWarpThreads;
  const int local = warp * kWarpTokens + lane % kWarpTokens;
  const int warp_bytes = (warp == 0 ? 2 * Tile::kRowsBytes : 0) + kWarpTokens * kStatisticsBytes;
  const AttentionShape& shape = params.shape;
  const int null_row = shape.batch * shape.sequence * shape.groups;
  const RangeUnits units = units_of(shape);
  Ring<Tile::kRowStages> row_ring;
  Ring<Tile::kKeyStages> key_ring;
  UnitCursor cursor(units, params.first_share, params.past_share);
  RangeUnit unit;
  while (cursor.next(unit)) {
    // All columns divide the tokens into the same chunks, because they add to the same sums. The
    // last tokens of a sequence may be a part of a chunk.
    unit.begin = unit.begin / Tile::kTokens * Tile::kTokens;
    unit.end = (unit.end == shape.sequence ? unit.end + Tile::kTokens - 1 : unit.end) /
               Tile::kTokens * Tile::kTokens;
    const int batch = unit.kv_head / shape.groups;
    const int group = unit.kv_head % shape.groups;
    const int key = unit.column * kUnitKeys;
    const int head = group * kHeadsPerGroup;
    if (warp == 0 && lane == 0) {
      const uint32_t full = shared_address(&shared.keys_full[key_ring.stage]);
      barrier_wait(shared_address(&shared.keys_empty[key_ring.stage]), key_ring.phase ^ 1u);
      shared.units[key_ring.stage] = unit;
      barrier_expect(full, sizeof(shared.keys[0]));
      tma_load(shared_address(shared.keys[key_ring.stage][0]), &k_map, 0, group, key, batch, full);
      tma_load(shared_address(shared.keys[key_ring.stage][1]), &v_map, 0, group, key, batch, full);
    }
    key_ring.advance();
    for (ChunkWalk chunks(unit); chunks.left > 0; chunks.advance()) {
      const int begin = chunks.begin;
      const int token = begin + local;
      const int row = (batch * shape.sequence + token) * shape.groups + group;
      const uint32_t full = shared_address(&shared.rows_full[row_ring.stage]);
      barrier_wait(shared_address(&shared.rows_empty[row_ring.stage]), row_ring.phase ^ 1u);
      if (lane == 0) barrier_expect(full, warp_bytes);
      __syncwarp();
      if (lane < kWarpTokens) {
        bulk_load(shared_address(shared.statistics[row_ring.stage] + local * kRowStatistics),
                  params.tensors.statistics +
                      static_cast<int64_t>(token < shape.sequence ? row : null_row) *
                          kRowStatistics,
                  kStatisticsBytes, full);
      }
      if (warp == 0 && lane == 0) {
        tma_load(shared_address(shared.q[row_ring.stage]), &q_map, 0, head, begin, batch, full);
        tma_load(shared_address(shared.d_out[row_ring.stage]), &d_out_map, 0, head, begin, batch,
                 full);
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

} // namespace nsa::kernels::compressed_backward
