#pragma once
// The tile of the embedding's gradient. Another tile is a change of this file.

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::embedding_gradient {

struct Tile {
  static constexpr int kWarps = 8; // a row of the table each
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kFewTokens = kWarpThreads; // of a row that a warp sums by itself: one a lane
  static constexpr int kLoads = 4; // rows of d_out whose loads are under way together
  static constexpr int kPassColumns =
      kWarpThreads * kVectorValues;             // that a warp's lanes hold a vector of
  static constexpr int kMostPasses = 4;         // instances of the kernel
  static constexpr int kWindowTokens = 1 << 16; // that a bitmap is of
};
static_assert(serves::embedding_gradient(1, 1, Tile::kMostPasses* Tile::kPassColumns) &&
                  !serves::embedding_gradient(1, 1, Tile::kMostPasses* Tile::kPassColumns + 1) &&
                  !serves::embedding_gradient(1, 1, (Tile::kMostPasses + 1) * Tile::kPassColumns),
              "launch_embedding_gradient has an instance for each width that is served");
static_assert(Tile::kMostPasses <= Tile::kWarps, "a warp joins one of a row's vectors");
static_assert(Tile::kWindowTokens % 32 == 0 && Tile::kWindowTokens / 8 <= 16 * 1024,
              "the bitmap lies in a CTA's shared memory, beside the warps' sums");
static_assert(serves::kMostLookups <= INT32_MAX / 2, "tokens are counted in 32 bits");

} // namespace nsa::kernels::embedding_gradient
