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
  // rows whose loads are in flight together; few, so that three CTAs share a multiprocessor
  static constexpr int kFewLoads = 2, kPartLoads = 3;
  static constexpr int kPassColumns =
      kWarpThreads * kVectorValues; // columns that the lanes of a warp cover with one vector each
  static constexpr int kMostPasses = 4;         // number of kernel instances
  static constexpr int kWindowTokens = 1 << 16; // tokens in a bitmap
  static constexpr int kPartTokens = 256;       // of a row with many tokens; a CTA sums a part
  static constexpr int kMostPartBlocks = 512;   // CTAs that sum parts
};
static_assert(serves::embedding_gradient(1, 1, Tile::kMostPasses* Tile::kPassColumns) &&
                  !serves::embedding_gradient(1, 1, Tile::kMostPasses* Tile::kPassColumns + 1) &&
                  !serves::embedding_gradient(1, 1, (Tile::kMostPasses + 1) * Tile::kPassColumns),
              "launch_embedding_gradient has an instance for each width that is served");
static_assert(Tile::kMostPasses <= Tile::kWarps, "a warp joins one of a row's vectors");
static_assert(Tile::kWindowTokens % 32 == 0 &&
                  Tile::kWindowTokens / 8 <= Tile::kWarps * Tile::kPassColumns * 4,
              "the bitmap takes no more shared memory than the warps' sums");
static_assert(Tile::kPartTokens > Tile::kFewTokens, "a part has more tokens than a warp sums");
static_assert(serves::kMostLookups <= INT32_MAX / 4, "tokens of both lists are counted in 32 bits");

} // namespace nsa::kernels::embedding_gradient
