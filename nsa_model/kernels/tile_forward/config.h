#pragma once
// The tile of the query-major forward. Another tile is a change of this file; what is not here is
// dQ's as well (common/query_tiles.cuh).

#include "nsa_model/kernels/common/query_tiles.cuh"

namespace nsa::kernels::tile_forward {

struct Tile : QueryMajorTile {
  static constexpr int kKeys = 2 * kTileKeys; // of a step; the last may take 64 or 32
  static constexpr int kKeyStages = 5;
};
static_assert(Tile::kKeys % kMaskKeys == 0, "masks are decided for whole groups of keys");

struct Shared {
  alignas(1024) uint8_t queries[Tile::kQueryStages][Tile::kQueryBytes];
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][2 * kTileKeyBytes]; // K, V
  alignas(8) uint64_t queries_full[Tile::kQueryStages];
  uint64_t queries_empty[Tile::kQueryStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
inline constexpr int kSharedBytes = sizeof(Shared) + 1024;
static_assert(check_tile<Tile, Shared>());

} // namespace nsa::kernels::tile_forward
