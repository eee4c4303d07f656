#pragma once
// The tile of a caller's blocks. Another tile is a change of this file.

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::given_indices {

struct Tile {
  static constexpr int kThreads = 256; // a row of kSlots indices each
};
static_assert(kSlots % 4 == 0, "a row is read 16 bytes at a time");

} // namespace nsa::kernels::given_indices
