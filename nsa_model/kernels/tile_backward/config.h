#pragma once
// The tiles of dQ. To use another tile, change this file. The rest of the tile is shared with the
// forward (common/query_tiles.cuh).

#include <type_traits>

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/query_tiles.cuh"

namespace nsa::kernels::tile_backward {

template <int kDim> struct TileOf;
template <> struct TileOf<kHeadDim> : QueryMajorTile {
  static constexpr int kKeyStages = 6;
};
// With 192 rows, Q and dO would take 96 KB a stage, and two stages would leave room for only one
// stage of keys. dQ would need 64 registers a thread beside 80 of S, dP and dS, more than the 160
// of three warpgroups. Two warpgroups with 128 rows have 232 registers and three stages of keys.
template <> struct TileOf<kWideHeadDim> : QueryMajorTile {
  static constexpr int kConsumers = 2;
  static constexpr int kRows = 128; // 21 tokens of six heads, and two rows of padding
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kKeyStages = 3;
};
// Tokens never fill the wide tile, whatever the number of heads.
template <typename Heads>
using TileHeads =
    std::conditional_t<TileOf<Heads::kDim>::kRows % kHeadsPerGroup == 0, Heads, Padded<Heads>>;

template <int kDim> struct Shared {
  using Tile = TileOf<kDim>;
  static constexpr int kQueryBytes = kPanels<kDim> * Tile::kRows * kRowBytes;
  alignas(1024) uint8_t queries[Tile::kQueryStages][2][kQueryBytes];              // Q, dO
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][kPanels<kDim> * kTileKeyBytes]; // K, V
  alignas(8) uint64_t queries_full[Tile::kQueryStages];
  uint64_t queries_empty[Tile::kQueryStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
template <int kDim> inline constexpr int kSharedBytes = sizeof(Shared<kDim>) + 1024;
static_assert(check_tile<TileOf<kHeadDim>, Shared<kHeadDim>>() &&
              check_tile<TileOf<kWideHeadDim>, Shared<kWideHeadDim>>());
// Steps have kTileKeys keys; the last may have half.
static_assert(kTileKeys % (2 * kMaskKeys) == 0, "half a step is masked as a whole, too");

} // namespace nsa::kernels::tile_backward
