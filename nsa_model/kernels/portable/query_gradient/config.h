#pragma once
// The tile of the portable dQ. Another tile is a change of this file; what is not here is
// attend's as well (portable/query_rows.cuh).

#include "nsa_model/kernels/portable/query_rows.cuh"

namespace nsa::kernels::portable::query_gradient {

struct Tile : QueryMajorTile {
  // CTAs a multiprocessor, which bounds registers.
  template <int kDim> static constexpr int kResident = kDim == kHeadDim ? 3 : 2;
  static constexpr int kPartKeys = 32; // of a step, at a time: bounds registers
};
static_assert(Tile::kKeys % Tile::kPartKeys == 0, "a step is whole parts");
static_assert(Tile::kPartKeys % kMmaDepth == 0, "dQ contracts over the keys of a part");
static_assert(Tile::kPartKeys % (2 * kGroupColumns) == 0, "ldmatrix brings keys of two products");
static_assert(check_query_major<Tile, kHeadDim>() && check_query_major<Tile, 2 * kHeadDim>());

} // namespace nsa::kernels::portable::query_gradient
