#pragma once
// The tile of a caller's blocks. To use another tile, change this file.

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::given_indices {

struct Tile {
  static constexpr int kThreads = 256; // each processes a row of kSlots indices
};
static_assert(kSlots % 4 == 0, "a row is read 16 bytes at a time");

} // namespace nsa::kernels::given_indices
