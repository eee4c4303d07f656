#pragma once
// The tile of the portable dK and dV. To use another tile, change this file.

#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable::key_gradient {

struct Tile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kKeys = kBlock; // keys of a unit
  // Tiles of 16 keys of a warp, whose sums stay in registers.
  template <int kDim> static constexpr int kKeyTiles = kDim == kHeadDim ? 2 : 1;
  template <int kDim> static constexpr int kKeyWarps = kKeys / (kWarpRows * kKeyTiles<kDim>);
  // Groups of warps, which have different rows of a step, and rows of a group.
  template <int kDim> static constexpr int kRowGroups = kWarps / kKeyWarps<kDim>;
  static constexpr int kGroupRows = 32;
  template <int kDim> static constexpr int kRows = kGroupRows * kRowGroups<kDim>; // of a step
  static constexpr int kRowStages = 2;
  static constexpr int kQueryDims = 32; // of dQ, computed by a warp for its group's rows
  static constexpr int kResident = 2;   // CTAs per multiprocessor, which limits the registers
};
static_assert(Tile::kRowStages == 2, "a step's rows are looked up while the stage before is read");
static_assert(Tile::kGroupRows % kMmaDepth == 0, "dK and dV contract over the rows of a group");

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
// The same with the room for dQ of pairs.
template <int kDim> struct SharedWithQueries : Shared<kDim> {
  static constexpr int kScoreColumns = 64; // of which a step uses kRows
  alignas(128) uint8_t d_scores[kTileBytes<kScoreColumns, Tile::kKeys>]; // dS^T
  alignas(128) uint8_t d_queries[Tile::kWarps][Tile::kGroupRows * Tile::kQueryDims * 2];
  int pair_row[Tile::kRowStages][Tile::kRows<kDim>]; // rows of partial_dq; -1 after the last
};

template <int kDim> constexpr bool check() {
  static_assert(Tile::kRows<kDim> <= Tile::kThreads, "a thread looks up one row of a step");
  static_assert(Tile::kKeyWarps<kDim> * Tile::kQueryDims == kDim, "a group computes whole rows");
  static_assert(Tile::kRows<kDim> <= SharedWithQueries<kDim>::kScoreColumns, "dS of a step");
  static_assert(Tile::kRowGroups<kDim> <= 2, "one group finishes dK, the other dV");
  static_assert(Tile::kRowGroups<kDim> == 1 ||
                    2 * Tile::kKeys * kDim * sizeof(float) <= sizeof(Shared<kDim>::rows),
                "the groups exchange sums in place of the rows");
  static_assert(sizeof(SharedWithQueries<kDim>) <= kLeastSharedBytes,
                "a CTA fits on every GPU from compute capability 8.0");
  return true;
}
static_assert(check<kHeadDim>() && check<2 * kHeadDim>());

} // namespace nsa::kernels::portable::key_gradient
