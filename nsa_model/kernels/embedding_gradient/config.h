#pragma once
// The tile of the embedding's gradient. To use another tile, change this file.

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::embedding_gradient {

struct Tile {
  static constexpr int kWarps = 8; // each owns a row of the table
  static constexpr int kThreads = kWarpThreads * kWarps;
  // largest number of tokens of a row that a single warp sums, one token a lane
  static constexpr int kFewTokens = kWarpThreads;
  static constexpr int kLoads = 4; // rows of d_out whose loads are in flight together
  static constexpr int kPassColumns =
      kWarpThreads * kVectorValues; // columns that the lanes of a warp cover with one vector each
  static constexpr int kMostPasses = 4;         // number of kernel instances
  static constexpr int kWindowTokens = 1 << 16; // tokens in a bitmap
};
static_assert(serves::embedding_gradient(1, 1, Tile::kMostPasses* Tile::kPassColumns) &&
                  !serves::embedding_gradient(1, 1, Tile::kMostPasses* Tile::kPassColumns + 1) &&
                  !serves::embedding_gradient(1, 1, (Tile::kMostPasses + 1) * Tile::kPassColumns),
              "launch_embedding_gradient has an instance for each width that is served");
static_assert(Tile::kMostPasses <= Tile::kWarps, "a warp joins one of a row's vectors");
static_assert(Tile::kWindowTokens % 32 == 0 && Tile::kWindowTokens / 8 <= 16 * 1024,
              "the bitmap lies in a CTA's shared memory, beside the warps' sums");
static_assert(serves::kMostLookups <= INT32_MAX / 4, "tokens of both lists are counted in 32 bits");

} // namespace nsa::kernels::embedding_gradient
