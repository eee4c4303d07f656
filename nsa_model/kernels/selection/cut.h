#pragma once
// How the tiles of a selection are divided among CTAs, and the resources of a CTA. Host code.

#include <algorithm>

#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/selection/config.h"

namespace nsa::kernels::selection {

// Assigns tiles to CTAs, with the number of warpgroups.
struct Cut {
  int cta_tiles = 1; // the kernel serves two, which no length has now (lab "bound-of-a-selection")
  int sharer_bits = 0; // log2 of a tile's warpgroups; the same
  int bytes;           // bytes of shared memory
  int threads;
  TileOrder order;
  int stride;
  bool spills;
};
template <typename Heads> Cut cut_of(const AttentionShape& shape) {
  const int blocks = block_count(shape.sequence);
  Cut cut = {};
  cut.spills = shape.sequence > kMostSharedScores;
  cut.stride = score_stride(blocks);
  cut.bytes = shared_bytes<Heads>(cut.spills ? 0 : cut.stride, cut.cta_tiles, 1 << cut.sharer_bits);
  cut.threads = kWarpgroupThreads * cut.cta_tiles << cut.sharer_bits;
  const int cta_tokens = cut.cta_tiles * Tile::kTokens;
  const int tiles = (shape.sequence + cta_tokens - 1) / cta_tokens;
  const int scored = std::max(0, tiles - kSlots * kBlock / cta_tokens);
  // Each CTA uses 1 KiB more of an SM's 228 KiB.
  const int places =
      multiprocessor_count() * std::min(228 * 1024 / (cut.bytes + 1024), kSmThreads / cut.threads);
  const auto order = cut.spills ? resident_tile_order : tile_order;
  cut.order = order(tiles, scored, shape.batch * shape.groups, std::max(1, places));
  return cut;
}

} // namespace nsa::kernels::selection
