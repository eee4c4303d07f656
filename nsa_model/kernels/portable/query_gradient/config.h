#pragma once
// The tile of the portable dQ. To use another tile, change this file. The rest of the tile is
// shared with attend (portable/query_rows.cuh).

#include "nsa_model/kernels/portable/query_rows.cuh"

namespace nsa::kernels::portable::query_gradient {

struct Tile : QueryMajorTile {
  // CTAs per multiprocessor, which limits the registers.
  template <int kDim> static constexpr int kResident = kDim == kHeadDim ? 3 : 2;
  // Keys of a step processed at a time, which limits the registers.
  static constexpr int kPartKeys = 32;
};
static_assert(Tile::kKeys % Tile::kPartKeys == 0, "a step is whole parts");
static_assert(Tile::kPartKeys % kMmaDepth == 0, "dQ contracts over the keys of a part");
static_assert(Tile::kPartKeys % (2 * kGroupColumns) == 0, "ldmatrix brings keys of two products");
static_assert(check_query_major<Tile, kHeadDim>() && check_query_major<Tile, 2 * kHeadDim>());

} // namespace nsa::kernels::portable::query_gradient
