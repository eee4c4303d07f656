#pragma once
// The tile of block selection. To use another tile, change this file.

#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/selection/filter.cuh"
#include "nsa_model/kernels/selection/plan.h"
#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels::selection {

inline constexpr int kBarrierBytes = 8; // size of an mbarrier in shared memory
// Compressed tokens that start in a block.
inline constexpr int kBlockKeys = kBlock / kCompressStride;

struct Tile {
  static constexpr int kTokens = 16;
  static constexpr int kPassHeads = 6; // heads of a product
  static constexpr int kRows = kTokens * kPassHeads;
  static constexpr int kStepBlocks = kWgmmaRows; // one key of each block is a row of M
  static constexpr int kKeyStages = 2;
  static constexpr int kPanelKeyBytes = kStepBlocks * kRowBytes;
  template <int kDim> static constexpr int kKeyBytes = kPanels<kDim> * kPanelKeyBytes;
};
static_assert(kBlock % Tile::kTokens == 0, "all tokens of a tile lie in one block");
static_assert(kBlockKeys == 4 && kCompressLength == 2 * kCompressStride,
              "the stencil of Eq. 9 is 1, 2, 2, 2, 1");
static_assert(kWarpgroupWarps * kUnitBlocks == Tile::kStepBlocks, "a warp has a unit of a step");
static_assert(kWarpgroupWarps * kPickTokens == Tile::kTokens, "and picks for a quarter of a tile");
static_assert(kBlockKeys % Tile::kKeyStages == 0, "a key of a step always takes the same stage");
inline constexpr int kSmCtas = 4; // at most; a thread then has 128 registers

// Queries, keys [stages][64 rows] and scores [16][score_stride] precede it.
template <typename Heads> struct Shared {
  // Negative log-sums, base 2. Tokens 2 i and 2 i + 1 are adjacent, because a thread reads both.
  static constexpr int kLseHeads = Heads::kPads ? kMostHeads : Tile::kPassHeads;
  alignas(16) float lse[Tile::kTokens / 2][kLseHeads][2];
  alignas(8) uint64_t queries_full;
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
// Follows it if scores are in global memory.
struct Filter {
  int4 maxima[kWarpgroupThreads]; // the largest scores of a thread's four tokens
  int32_t kept[Tile::kTokens][kMostKept];
};
template <typename Heads> __host__ __device__ constexpr int panel_query_bytes() {
  constexpr int kPasses = Heads::kPads ? (kMostHeads + Tile::kPassHeads - 1) / Tile::kPassHeads : 1;
  return kPasses * Tile::kRows * kRowBytes;
}
template <typename Heads> __host__ __device__ constexpr int query_bytes() {
  return kPanels<Heads::kDim> * panel_query_bytes<Heads>();
}
// `stride`: floats of a token's scores, or 0 if they are in global memory.
template <typename Heads> constexpr int shared_bytes(int stride) {
  return query_bytes<Heads>() + Tile::kKeyStages * Tile::kKeyBytes<Heads::kDim> +
         Tile::kTokens * 4 * stride +
         static_cast<int>(sizeof(Shared<Heads>) + (stride == 0 ? sizeof(Filter) : 0));
}
inline constexpr int kMostStride = score_stride(kMostSharedScores / kBlock);
static_assert(shared_bytes<AnyHeads>(kMostStride) <= kMostSharedBytes);
static_assert(shared_bytes<Wide<AnyHeads>>(kMostStride) <= kMostSharedBytes);

} // namespace nsa::kernels::selection
