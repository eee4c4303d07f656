#pragma once
// The tile of the portable forward. Another tile is a change of this file; what is not here is
// query_gradient's as well (portable/query_rows.cuh).

#include "nsa_model/kernels/portable/query_rows.cuh"

namespace nsa::kernels::portable::attend {

struct Tile : QueryMajorTile {
  // CTAs a multiprocessor, which bounds registers.
  template <int kDim> static constexpr int kResident = kDim == kHeadDim ? 4 : 2;
};
static_assert(check_query_major<Tile, kHeadDim>() && check_query_major<Tile, 2 * kHeadDim>());

} // namespace nsa::kernels::portable::attend
