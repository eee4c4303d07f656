#pragma once
// The tile of the portable forward of lists. To use another tile, change this file.

#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/packed_slots.h"
#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable::list_attend {

struct Tile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kKeys = kBlock; // keys of a unit
  // Tiles of 16 query rows of a warp's step. There are fewer if the outputs need more registers.
  template <int kDim> static constexpr int kRowTiles = kDim == kHeadDim ? 2 : 1;
  template <int kDim> static constexpr int kRows = kWarpRows * kRowTiles<kDim>;
  static constexpr int kRowStages = 2; // of each warp
  // CTAs per multiprocessor, which limits the registers.
  template <int kDim> static constexpr int kResident = kDim == kHeadDim ? 3 : 2;
};

template <int kDim> struct Shared {
  static constexpr int kRows = Tile::kRows<kDim>;
  alignas(128) uint8_t keys[2 * kTileBytes<kDim, Tile::kKeys>]; // K, V
  alignas(128) uint8_t rows[Tile::kWarps][Tile::kRowStages][kTileBytes<kDim, kRows>];
  int pair[Tile::kWarps][Tile::kRowStages][kRows]; // pair * kMostHeads + head; -1 after the last
  int last[Tile::kWarps][Tile::kRowStages][kRows]; // last key of the block that a row sees
};
template <int kDim> constexpr bool check() {
  static_assert(Tile::kRows<kDim> <= kWarpThreads, "a lane looks up one row of a step");
  static_assert(sizeof(Shared<kDim>) <= kLeastSharedBytes,
                "a CTA fits on every GPU from compute capability 8.0");
  return true;
}
static_assert(check<kHeadDim>() && check<2 * kHeadDim>());

} // namespace nsa::kernels::portable::list_attend
