#pragma once
// The tile of the merges of partial results. To use another tile, change this file.

#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::combine {

struct Tile {
  static constexpr int kRowsPerBlock = 4; // for six heads; for others, as many as fit the threads
};
// Each thread owns one vector of a head.
template <int kDim>
inline constexpr int kThreads = kHeadsPerGroup * (kDim / kVectorValues) * Tile::kRowsPerBlock;
static_assert(kThreads<2 * kHeadDim> >= kMostHeads * 2 * kHeadDim / kVectorValues &&
                  kThreads<kHeadDim> >= kMostHeads * kHeadDim / kVectorValues,
              "a row of the most heads fits a CTA");
static_assert(kThreads<2 * kHeadDim> <= 1024, "threads of a CTA");

} // namespace nsa::kernels::combine
