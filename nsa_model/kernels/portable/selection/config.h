#pragma once
// The tile of the portable selection. To use another tile, change this file and
// serves::portable_selection_bytes, which computes a CTA's shared memory without CUDA.

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/selection/pick.cuh"

namespace nsa::kernels::portable::selection {

// Compressed tokens that start in a block.
inline constexpr int kBlockKeys = kBlock / kCompressStride;

struct Tile {
  static constexpr int kTokens = kGroupColumns; // the columns of a head's product
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kKeys = kWarpRows * kWarps; // keys of a step
  static constexpr int kBlocks = kKeys / kBlockKeys;
  static constexpr int kKeyStages = 2;
  static constexpr int kSums = 2; // steps whose probabilities are kept: this one and the last
  static constexpr int kPaddedKeys = kKeys + 4; // the padding spreads the tokens over the banks
};
static_assert(kBlock % Tile::kTokens == 0, "all tokens of a CTA lie in one block");
static_assert(kBlockKeys == 4 && kCompressLength == 2 * kCompressStride,
              "the stencil of Eq. 9 is 1, 2, 2, 2, 1");
static_assert(Tile::kTokens * Tile::kBlocks == Tile::kThreads,
              "a thread scores one block of a step");
static_assert(Tile::kBlocks == kUnitBlocks, "a step is a unit of the choice");
static_assert(Tile::kTokens % kPickTokens == 0, "whole warps choose");

struct Shared {
  float probabilities[Tile::kSums][Tile::kTokens][Tile::kPaddedKeys]; // summed over heads
  float lse[kMostHeads][Tile::kTokens];                               // base 2
};
// K~ [stages][keys][D] and queries [heads][tokens][D] precede it. Scores [tokens][score_stride]
// follow it. The stride has 16 bytes a token more than the steps need, which spreads the tokens
// over the banks.
__host__ __device__ constexpr int score_stride(int blocks) {
  return kUnitBlocks * unit_count(blocks > kSlots ? blocks - 1 : kSlots) + 4;
}
__host__ __device__ constexpr int row_bytes(int heads, int head_dim) {
  return (Tile::kKeyStages * Tile::kKeys + heads * Tile::kTokens) * head_dim * 2;
}
constexpr int shared_bytes(int heads, int head_dim, int sequence) {
  return row_bytes(heads, head_dim) + static_cast<int>(sizeof(Shared)) +
         Tile::kTokens * 4 * score_stride(block_count(sequence));
}
static_assert(shared_bytes(1, 64, 1000) == serves::portable_selection_bytes(1, 64, 1000) &&
                  shared_bytes(16, 128, 1088) == serves::portable_selection_bytes(16, 128, 1088) &&
                  shared_bytes(6, 64, 131072) == serves::portable_selection_bytes(6, 64, 131072),
              "what is served is what fits");

} // namespace nsa::kernels::portable::selection
