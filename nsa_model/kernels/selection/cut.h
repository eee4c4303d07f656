#pragma once
// How the tiles of a selection are divided among CTAs, and the resources of a CTA. Host code.

#include <algorithm>

#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/selection/config.h"

namespace nsa::kernels::selection {

struct Cut {
  int bytes; // bytes of shared memory
  TileOrder order;
  int stride;
  bool spills;
};
template <typename Heads> Cut cut_of(const AttentionShape& shape) {
  const int blocks = block_count(shape.sequence);
  Cut cut = {};
  cut.spills = shape.sequence > kMostSharedScores;
  cut.stride = score_stride(blocks);
  cut.bytes = shared_bytes<Heads>(cut.spills ? 0 : cut.stride);
  const int tiles = (shape.sequence + Tile::kTokens - 1) / Tile::kTokens;
  const int scored = std::max(0, tiles - kSlots * kBlock / Tile::kTokens);
  // Each CTA uses 1 KiB more of an SM's 228 KiB.
  const int places = multiprocessor_count() * std::min(228 * 1024 / (cut.bytes + 1024), kSmCtas);
  const auto order = cut.spills ? resident_tile_order : tile_order;
  cut.order = order(tiles, scored, shape.batch * shape.groups, std::max(1, places));
  return cut;
}

} // namespace nsa::kernels::selection
