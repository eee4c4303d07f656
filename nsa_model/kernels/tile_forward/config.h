#pragma once
// The tiles of the query-major forward. To use another tile, change this file. The rest of the tile
// is shared with dQ (common/query_tiles.cuh).

#include "nsa_model/kernels/common/query_tiles.cuh"

namespace nsa::kernels::tile_forward {

template <int kDim> struct TileOf;
template <> struct TileOf<kHeadDim> : QueryMajorTile {
  static constexpr int kKeys = 2 * kTileKeys; // keys of a step; the last may have 64 or 32
  static constexpr int kKeyStages = 5;
};
// O needs twice the registers: 64 a thread. With steps of 64 keys, whose scores and probabilities
// need 48, three warpgroups keep their 160. Two warpgroups with steps of 128 keys would have room
// for only two stages of keys. One of them is held until its P V is done.
template <> struct TileOf<kWideHeadDim> : QueryMajorTile {
  static constexpr int kKeys = kTileKeys; // keys of a step; the last may have 32
  static constexpr int kKeyStages = 4;
};

template <int kDim> struct Shared {
  using Tile = TileOf<kDim>;
  alignas(1024) uint8_t queries[Tile::kQueryStages][kPanels<kDim> * Tile::kRows * kRowBytes];
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][kPanels<kDim> * Tile::kKeys * kRowBytes]; // K, V
  alignas(8) uint64_t queries_full[Tile::kQueryStages];
  uint64_t queries_empty[Tile::kQueryStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
template <int kDim> inline constexpr int kSharedBytes = sizeof(Shared<kDim>) + 1024;
template <int kDim> constexpr bool check() {
  static_assert(TileOf<kDim>::kKeys % kMaskKeys == 0, "masks are decided for whole groups of keys");
  static_assert(kPanels<kDim> * TileOf<kDim>::kKeys == 2 * kTileKeys, "K is two boxes, and V");
  return check_tile<TileOf<kDim>, Shared<kDim>>();
}
static_assert(check<kHeadDim>() && check<kWideHeadDim>());

} // namespace nsa::kernels::tile_forward
