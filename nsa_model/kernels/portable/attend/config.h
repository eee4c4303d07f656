#pragma once
// The tile of the portable forward. To use another tile, change this file. The rest of the tile is
// shared with query_gradient (portable/query_rows.cuh).

#include "nsa_model/kernels/portable/query_rows.cuh"

namespace nsa::kernels::portable::attend {

struct Tile : QueryMajorTile {
  // CTAs per multiprocessor, which limits the registers.
  template <int kDim> static constexpr int kResident = kDim == kHeadDim ? 4 : 2;
};
static_assert(check_query_major<Tile, kHeadDim>() && check_query_major<Tile, 2 * kHeadDim>());

} // namespace nsa::kernels::portable::attend
