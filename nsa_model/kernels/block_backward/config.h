#pragma once
// The tile of the reduction of dK and dV. Another tile is a change of this file.

#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::block_backward {

struct Tile {
  static constexpr int kTogether = 2; // units whose loads are under way together: most blocks' all
};
// A thread has a vector of a block of keys.
template <int kDim> inline constexpr int kThreads = kBlock * kDim / kVectorValues;
// CTAs a multiprocessor, which bounds registers.
template <int kDim> inline constexpr int kResident = kDim == kHeadDim ? 3 : 1;
static_assert(kHeadDim % kVectorValues == 0, "a vector is of one key");
static_assert(kThreads<2 * kHeadDim> <= 1024, "threads of a CTA");

} // namespace nsa::kernels::block_backward
