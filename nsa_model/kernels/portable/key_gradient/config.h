#pragma once
// The tile of the portable dK and dV. To use another tile, change this file.

#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable::key_gradient {

struct Tile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kKeys = kWarpRows * kWarps; // keys of a unit
  // Query rows of a step. There are fewer if the sums need more registers.
  template <int kDim> static constexpr int kRows = kDim == kHeadDim ? 64 : 32;
  static constexpr int kRowStages = 2;
  // CTAs per multiprocessor, which limits the registers.
  template <int kDim> static constexpr int kResident = kDim == kHeadDim ? 3 : 2;
};
static_assert(Tile::kKeys == kBlock, "a unit has the keys of one block, of lists and of KeyUnits");
static_assert(Tile::kRowStages == 2, "a step's rows are looked up while the stage before is read");

template <int kDim> struct Shared {
  static constexpr int kRows = Tile::kRows<kDim>;
  alignas(128) uint8_t keys[2 * kTileBytes<kDim, Tile::kKeys>];             // K, V
  alignas(128) uint8_t rows[Tile::kRowStages][2 * kTileBytes<kDim, kRows>]; // Q, dO
  alignas(16) float lse[Tile::kRowStages][kRows];
  alignas(16) float delta[Tile::kRowStages][kRows];
  alignas(16) int token[Tile::kRowStages][kRows];
  // Rows in tensors [batch, sequence, groups * heads]; -1 after the last.
  int query_row[Tile::kRowStages][kRows];
};
template <int kDim> constexpr bool check() {
  static_assert(Tile::kRows<kDim> <= Tile::kThreads, "a thread looks up one row of a step");
  static_assert(Tile::kRows<kDim> % kMmaDepth == 0, "dK and dV contract over the rows of a step");
  static_assert(sizeof(Shared<kDim>) <= kLeastSharedBytes,
                "a CTA fits on every GPU from compute capability 8.0");
  return true;
}
static_assert(check<kHeadDim>() && check<2 * kHeadDim>());

} // namespace nsa::kernels::portable::key_gradient
