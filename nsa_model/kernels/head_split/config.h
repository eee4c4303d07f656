#pragma once
// The tile of the split of joined projections. To use another tile, change this file.

#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::head_split {

struct Tile {
  static constexpr int kThreads = 256; // each processes a chunk of heads (head_split.cuh)
  static constexpr int kResident = 2;  // CTAs per multiprocessor, which limits the registers
};
static_assert(16 % (2 * kVectorValues) == 0,
              "both halves of a head of a multiple of 16 dimensions are whole vectors");

} // namespace nsa::kernels::head_split
