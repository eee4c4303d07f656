#pragma once
// The tile of the selected branch's forward kernel. To use another tile, change this file.

#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::selected_forward {

struct Tile {
  static constexpr int kTokens = 32; // for six heads
  static constexpr int kRows = kTokens * kHeadsPerGroup;
  static constexpr int kKeys = kBlock;
  static constexpr int kConsumers = 3;     // computing warpgroups
  static constexpr int kProducerWarps = 4; // one warpgroup that loads
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kPanelBytes = kRows * kRowBytes; // bytes of a panel of queries
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  // Tokens that a producer warp gathers, for six heads.
  static constexpr int kWarpTokens = kTokens / kProducerWarps;
  // setmaxnreg: the consumers get the registers that the producers release.
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 152;
  // Columns of ones after V, whose products are the rows' sums.
  static constexpr int kOnesColumns = kGroupColumns;
  static constexpr int kOnesRows = kWgmmaDepth;
};
static_assert(Tile::kRows == kWgmmaRows * Tile::kConsumers,
              "each consumer warpgroup owns one m64 tile of the chunk");
static_assert(Tile::kProducerWarps == kWarpgroupWarps, "setmaxnreg is a warpgroup's");
static_assert(kJoinedTokens == Tile::kTokens, "a joined unit is one chunk");
static_assert(Tile::kTokens % Tile::kProducerWarps == 0, "producer warps have equal parts");
static_assert(registers_fit(Tile::kProducerRegisters, Tile::kConsumerRegisters, Tile::kConsumers));

// Stages of queries and of blocks. Packed results need no buffer, so a sixth stage of queries takes
// its place. Joined units need one block after another, so more blocks are loaded ahead.
template <int kDim, bool kPacked> struct Stages {
  static constexpr int kQueries = kPacked ? 6 : 5;
  static constexpr int kBlocks = kPacked ? 4 : 2;
};
// A chunk takes 48 KB and a block 32 KB.
template <> struct Stages<kWideHeadDim, false> {
  static constexpr int kQueries = 2;
  static constexpr int kBlocks = 2;
};

} // namespace nsa::kernels::selected_forward
