#pragma once
// The tile of average pooling. To use another tile, change this file.

#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::pooling {

struct Tile {
  static constexpr int kThreads = 256; // each owns a vector of 8 dimensions
  static constexpr int kLoads = 8;     // loads of 16 bytes that a thread has in flight
};
static_assert(kHeadDim % kVectorValues == 0, "a row is whole vectors");
static_assert(kCompressLength % Tile::kLoads == 0, "a block's rows are read in whole turns");
static_assert(kCompressLength % kCompressStride == 0, "as many blocks hold every token");

} // namespace nsa::kernels::pooling
