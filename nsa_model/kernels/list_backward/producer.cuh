#pragma once
// The loading warps of the selected branch's backward. They claim units, gather each chunk's query
// rows, and write where the dQ of each token is stored. Device code only.

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_lists/list_entries.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/list_backward/config.h"

namespace nsa::kernels::list_backward {

#if NSA_HOPPER_CODE

// A block and part of its list of tokens.
struct Unit : UnitPlace {
  int begin; // first of the list's entries
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
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const int chunk_tokens = heads.tokens(Tile::kRows);
  const int warp_tokens = (chunk_tokens + Tile::kProducerWarps - 1) / Tile::kProducerWarps;
  const int token_bytes = heads.count() * kRowBytes;
  const int statistics = 2 * heads.statistics();
  const int statistics_bytes = statistics * static_cast<int>(sizeof(float));
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x % kWarpgroupThreads / kWarpThreads;
  const AttentionShape& shape = params.shape;
  const int null_row = shape.batch * shape.sequence * shape.groups;
  int chunk = 0; // counts through all units
  UnitClaims<Tile::kKeyStages, kDim> claims(shared.units, units, params.items, params.claims,
                                            warp == 0 && lane == 0);
  for (;;) {
    const WorkItem item =
        claims.next(k_map, v_map, blocks, params.round.cut.sections, shape.groups);
    if (item.segment == kNoSegment) break;
    const Unit unit(params, item, blocks);
    const PairRows pair_rows(shape, params.round, unit.kv_head);
    const int head = unit.group * heads.count();
    const int chunks = (unit.end - unit.begin + chunk_tokens - 1) / chunk_tokens;
    // Every warp loads its part of every chunk. So each warp sees all phases of a stage's barriers
    // in order.
    const int first = uniform(warp * warp_tokens);
    const int local = first + lane % warp_tokens;
    const bool brings = lane < warp_tokens && local < chunk_tokens;
    const int warp_bytes = max(0, min(warp_tokens, chunk_tokens - first)) *
                           (2 * kPanels<kDim> * token_bytes + statistics_bytes);
    ListEntries entries(params.entries, unit.begin, unit.end, first, chunk_tokens, warp_tokens);
    int position = unit.begin + local;
    for (int i = 0; i < chunks; ++i, position += chunk_tokens) {
      // After the end of the list, the last token repeats without weight.
      const int entry = entries.next();
      const bool listed = position < unit.end;
      const int token = entry / kSlots;
      // The answer arrives while the last chunk waits for its stage.
      if (i == chunks - 1) claims.claim();
      const int row =
          listed ? (unit.batch * shape.sequence + token) * shape.groups + unit.group : null_row;
      const EveryLane<Heads, kWarpTokens<kDim>> its_token(token);
      const EveryLane<Heads, kWarpTokens<kDim>> its_row(row);
      const int stage = uniform((chunk + i) % Tile::kRowStages);
      const uint32_t full = shared_address(&shared.rows_full[stage]);
      barrier_wait(shared_address(&shared.rows_empty[stage]),
                   (static_cast<uint32_t>((chunk + i) / Tile::kRowStages) & 1u) ^ 1u);
      if (brings) {
        shared.pairs[stage][local] = listed ? pair_rows.row(token) * kSlots + entry % kSlots : -1;
        shared.tokens[stage][local] = token;
      }
      warp_expect(full, warp_bytes);
      __syncwarp();
      const auto load = [&](int place, int from_token, int from_row) {
#pragma unroll
        for (int panel = 0; panel < kPanels<kDim>; ++panel) {
          const int offset = panel * Shared<Heads>::kPanelBytes + place * token_bytes;
          tma_load(shared_address(shared.q[stage]) + offset, &q_map, panel * kPanelDims, head,
                   from_token, unit.batch, full);
          tma_load(shared_address(shared.d_out[stage]) + offset, &d_out_map, panel * kPanelDims,
                   head, from_token, unit.batch, full);
        }
        bulk_load(shared_address(shared.statistics[stage] + place * statistics),
                  params.tensors.statistics + static_cast<int64_t>(from_row) * statistics,
                  statistics_bytes, full);
      };
      if constexpr (Heads::kPads) {
        if (brings) load(local, token, row);
      } else if (elected()) {
#pragma unroll
        for (int j = 0; j < kWarpTokens<kDim>; ++j)
          load(first + j, its_token.values[j], its_row.values[j]);
      }
    }
    chunk += chunks;
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::list_backward
