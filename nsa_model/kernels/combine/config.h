#pragma once
// The tile of the merges of partial results. Another tile is a change of this file.

#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::combine {

struct Tile {
  static constexpr int kRowsPerBlock = 4; // of six heads; others take as many as fit the threads
};
// A thread has a vector of a head.
template <int kDim>
inline constexpr int kThreads = kHeadsPerGroup * (kDim / kVectorValues) * Tile::kRowsPerBlock;
static_assert(kThreads<2 * kHeadDim> >= kMostHeads * 2 * kHeadDim / kVectorValues &&
                  kThreads<kHeadDim> >= kMostHeads * kHeadDim / kVectorValues,
              "a row of the most heads fits a CTA");
static_assert(kThreads<2 * kHeadDim> <= 1024, "threads of a CTA");

} // namespace nsa::kernels::combine
