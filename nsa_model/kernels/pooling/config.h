#pragma once
// The tile of average pooling. Another tile is a change of this file.

#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::pooling {

struct Tile {
  static constexpr int kThreads = 256; // a vector of 8 dimensions each
  static constexpr int kLoads = 8;     // of 16 bytes that a thread has under way
};
static_assert(kHeadDim % kVectorValues == 0, "a row is whole vectors");
static_assert(kCompressLength % Tile::kLoads == 0, "a block's rows are read in whole turns");
static_assert(kCompressLength % kCompressStride == 0, "as many blocks hold every token");

} // namespace nsa::kernels::pooling
