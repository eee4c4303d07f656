#pragma once
// The loading warps. They claim units, gather each chunk's query rows, and write where the results
// of each token are stored. Device code only.

#include <type_traits>

#include "nsa_model/kernels/block_lists/list_entries.cuh"
#include "nsa_model/kernels/selected_forward/packed_store.cuh"
#include "nsa_model/kernels/selected_forward/selected_forward.h"
#include "nsa_model/kernels/selected_forward/shared.cuh"

namespace nsa::kernels::selected_forward {

#if NSA_HOPPER_CODE

__device__ __forceinline__ JoinedBlocks joined_blocks(const SelectedForwardParams& params) {
  return {params.joined_first_token, params.shape.sequence};
}

template <typename Heads, bool kPacked>
__device__ void produce(const SelectedForwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared<Heads, kPacked>& shared,
                        const UnitRange& units, int blocks) {
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x % kWarpgroupThreads / kWarpThreads;
  const int tokens = chunk_tokens(heads);
  const int warp_tokens = (tokens + Tile::kProducerWarps - 1) / Tile::kProducerWarps;
  const int first = uniform(warp * warp_tokens);
  const int local = first + lane % warp_tokens;
  const bool brings = lane < warp_tokens && local < tokens;
  constexpr int kDim = Heads::kDim;
  const int warp_bytes =
      max(0, min(warp_tokens, tokens - first)) * kPanels<kDim> * heads.count() * kRowBytes;
  const AttentionShape& shape = params.shape;
  Ring<Stages<kDim, kPacked>::kQueries> ring;
  using Joined = std::conditional_t<kPacked, JoinedUnits, NoJoinedUnits>;
  Joined joined;
  if constexpr (kPacked) {
    joined = {joined_blocks(params), params.segment_start, params.round.cut,
              params.round.first_kv_head, blocks};
  }
  const int sections = params.round.cut.sections;
  const int slots = params.joined_first_token == 0 ? kSlots : kJoinedSlots;
  UnitClaims<Stages<kDim, kPacked>::kBlocks, kDim, Joined> claims(
      shared.units, units, params.items, params.claims, warp == 0 && lane == 0, joined);
  for (;;) {
    const WorkItem item = claims.next(k_map, v_map, blocks, sections, shape.groups);
    if (item.segment == kNoSegment) break;
    const UnitPlace at(item.segment, blocks, sections, shape.groups);
    const int group = uniform(at.group);
    const int batch = uniform(at.batch);
    const PairRows pair_rows(shape, params.round, at.kv_head);
    // Loads a chunk's row: that of a token, whose partial result goes to a slot, if any.
    const auto bring = [&](int token, int slot, bool listed) {
      const EveryLane<Heads, Tile::kWarpTokens> its_token(token);
      const int stage = uniform(ring.stage);
      const uint32_t full = shared_address(&shared.queries_full[stage]);
      barrier_wait(shared_address(&shared.queries_empty[stage]), ring.phase ^ 1u);
      if (brings) {
        const int64_t pair = pair_rows.row(token) * slots + slot;
        if constexpr (kPacked) {
          shared.pairs[stage][local] =
              listed ? reinterpret_cast<Record>(params.packed + pair) : kNoRecord;
        } else {
          shared.pairs[stage][local] = listed ? static_cast<int32_t>(pair) : -1;
        }
        shared.tokens[stage][local] = token;
      }
      warp_expect(full, warp_bytes);
      __syncwarp();
      const auto load = [&](int place, int from_token) {
#pragma unroll
        for (int panel = 0; panel < kPanels<kDim>; ++panel) {
          tma_load(shared_address(shared.queries[stage]) + panel * Tile::kPanelBytes +
                       place * heads.count() * kRowBytes,
                   &q_map, panel * kPanelDims, group * heads.count(), from_token, batch, full);
        }
      };
      if constexpr (Heads::kPads) {
        if (brings) load(local, token);
      } else if (elected()) {
#pragma unroll
        for (int j = 0; j < Tile::kWarpTokens; ++j)
          load(first + j, its_token.values[j]);
      }
      ring.advance();
    };
    if constexpr (kPacked) {
      if (item.index < 0) { // a part of a joined unit; its rows are loaded with the first part
        if (item.index != kFirstPart) continue;
        claims.claim();
        bring(min(item.begin + local, item.end - 1), 0, item.begin + local < item.end);
        continue;
      }
    }
    ListEntries entries(params.entries, item.begin, item.end, first, tokens, warp_tokens);
    for (int begin = item.begin; begin < item.end; begin += tokens) {
      // After the end of the list, the last entry is computed again and not stored.
      const int entry = entries.next();
      // The answer arrives while the last chunk waits for its stage.
      if (begin + tokens >= item.end) claims.claim();
      bring(entry / kSlots, entry % kSlots, begin + local < item.end);
    }
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::selected_forward
