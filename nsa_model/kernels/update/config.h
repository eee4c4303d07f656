#pragma once
// The tiles of the optimizer's update. To use another tile, change this file.

#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/update/update.h"

namespace nsa::kernels::update {

struct Tile {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kVectorsAThread = 4; // vectors of an added gradient
  // CTAs of the norm's first stage, each with a partial sum: eight for each of an H200's 132
  // multiprocessors. It is a constant, so the order of the sums is the same on every GPU.
  static constexpr int kParts = 1056;
  static constexpr int kLoads = 4; // loads of 16 bytes that a thread of this stage has in flight
};
static_assert(kSlotElements % kVectorValues == 0, "a slot is whole vectors: AdamW has no rest");
static_assert(Tile::kLoads == 4, "the four sums of a thread are added in pairs");

} // namespace nsa::kernels::update
