#pragma once
// The tile of the reduction of dK and dV. To use another tile, change this file.

#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::block_backward {

struct Tile {
  // Units whose loads are in flight together; most blocks have no more.
  static constexpr int kTogether = 2;
  // The same for launches of so few CTAs that each has a multiprocessor of its own.
  template <int kDim> static constexpr int kTogetherAlone = kDim == kHeadDim ? 8 : 4;
  // CTAs that share a block's rows in such a launch: one CTA alone waits for its own loads.
  static constexpr int kPartsAlone = 4;
};
// Each thread owns one vector of a block of keys.
template <int kDim> inline constexpr int kThreads = kBlock * kDim / kVectorValues;
// CTAs per multiprocessor, which limits the registers.
template <int kDim, int kTogether>
inline constexpr int kResident = kDim == kHeadDim && kTogether == Tile::kTogether ? 3 : 1;
static_assert(kHeadDim % kVectorValues == 0, "a vector is of one key");
static_assert(kThreads<2 * kHeadDim> <= 1024, "threads of a CTA");

} // namespace nsa::kernels::block_backward
