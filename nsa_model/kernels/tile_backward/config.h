#pragma once
// The tile of dQ. Another tile is a change of this file; what is not here is the forward's as well
// (common/query_tiles.cuh).

#include "nsa_model/kernels/common/query_tiles.cuh"

namespace nsa::kernels::tile_backward {

struct Tile : QueryMajorTile {
  static constexpr int kKeys = kTileKeys; // of a step; the last may take 32
  static constexpr int kKeyStages = 6;
};
static_assert(Tile::kKeys % (2 * kMaskKeys) == 0, "half a step is masked as a whole, too");

struct Shared {
  alignas(1024) uint8_t queries[Tile::kQueryStages][2][Tile::kQueryBytes]; // Q, dO
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][kTileKeyBytes];          // K, V
  alignas(8) uint64_t queries_full[Tile::kQueryStages];
  uint64_t queries_empty[Tile::kQueryStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
inline constexpr int kSharedBytes = sizeof(Shared) + 1024;
static_assert(check_tile<Tile, Shared>());

} // namespace nsa::kernels::tile_backward
