#pragma once
// The tile of the selected branch's backward. To use another tile, change this file.

#include "nsa_model/kernels/block_backward/columns.cuh"
#include "nsa_model/kernels/block_lists/claimed_units.cuh"
#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::list_backward {

// The common part of both tiles.
struct ListTile {
  static constexpr int kConsumers = 2; // computing warpgroups, which process chunks in turn
  static constexpr int kRowStages = 2 * kConsumers;
  static constexpr int kKeyStages = 2;
  static constexpr int kProducerWarps = 4; // one warpgroup that loads
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  // setmaxnreg: the consumers get the registers that the producers release.
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 224;
};
template <int kDim> struct TileOf;
template <> struct TileOf<kHeadDim> : ListTile {
  static constexpr int kTokens = 16; // tokens in a chunk, for six heads
  static constexpr int kRows = kTokens * kHeadsPerGroup;
  static constexpr bool kHoldsValues = true; // V of the unit stays in registers
  // Floats of a thread's half of dK and dV that are exchanged at a time.
  static constexpr int kExchangedFloats = 32;
};
// dK and dV take 128 registers a thread, so a chunk has half the rows and V stays in shared memory.
// There the halves of dK and dV would take 64 KB at once; a quarter of each takes 16 KB.
template <> struct TileOf<kWideHeadDim> : ListTile {
  static constexpr int kTokens = 8;
  static constexpr int kRows = kTokens * kHeadsPerGroup;
  static constexpr bool kHoldsValues = false;
  static constexpr int kExchangedFloats = 16;
};

template <int kDim> constexpr bool check() {
  using Tile = TileOf<kDim>;
  static_assert(Tile::kConsumers == 2, "two warpgroups exchange halves of dK and dV");
  static_assert(Tile::kRowStages % Tile::kConsumers == 0, "a stage serves one warpgroup");
  static_assert(Tile::kRows % kWgmmaDepth == 0, "dK and dV contract over the rows of a chunk");
  static_assert(Tile::kRows % (kHeadsPerGroup * kGroupFloats) == 0,
                "a lane's columns repeat every four tokens (Columns)");
  static_assert(Tile::kRows * kRowBytes % 1024 == 0, "a panel begins where swizzles do");
  static_assert(kLaneFloats<kDim> % Tile::kExchangedFloats == 0, "exchanges are alike");
  static_assert(Tile::kProducerWarps == kWarpgroupWarps, "setmaxnreg is a warpgroup's");
  static_assert(Tile::kTokens % Tile::kProducerWarps == 0, "warps have equal parts");
  static_assert(
      registers_fit(Tile::kProducerRegisters, Tile::kConsumerRegisters, Tile::kConsumers));
  return true;
}
static_assert(check<kHeadDim>() && check<kWideHeadDim>());
static_assert(kBlock == kWgmmaRows, "the keys of a block are the M of a product");

// Tokens that a warp gathers, and tokens whose dQ it stores, for six heads.
template <int kDim>
inline constexpr int kWarpTokens = TileOf<kDim>::kTokens / TileOf<kDim>::kProducerWarps;
// A warpgroup's part of an exchange: a piece of the half that the other warpgroup sums.
template <int kDim> using Exchange = float4[TileOf<kDim>::kExchangedFloats / 4][kWarpgroupThreads];

template <typename Heads> struct Shared {
  static constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  static constexpr int kPanelBytes = Tile::kRows * kRowBytes;
  static constexpr int kRowsBytes = kPanels<kDim> * kPanelBytes;
  // With padding rows there are entries for "tokens" after the last. They say that nothing is
  // stored.
  static constexpr int kTokens = Heads::kPads ? Tile::kRows + 1 : Tile::kTokens;
  alignas(1024) uint8_t q[Tile::kRowStages][kRowsBytes];
  alignas(1024) uint8_t d_out[Tile::kRowStages][kRowsBytes];
  ClaimedUnits<Tile::kKeyStages, kDim> units;
  alignas(1024) uint8_t d_scores[Tile::kConsumers][kPanelBytes];
  alignas(1024) uint8_t d_queries[Tile::kConsumers][kRowsBytes];
  alignas(1024) Exchange<kDim> exchange[Tile::kConsumers];
  alignas(128) float statistics[Tile::kRowStages][chunk_statistics<Heads>(Tile::kRows)];
  int32_t pairs[Tile::kRowStages][kTokens]; // row of PairRows * 16 + slot; -1: padding
  int32_t tokens[Tile::kRowStages][kTokens];
  alignas(8) uint64_t rows_full[Tile::kRowStages];
  uint64_t rows_empty[Tile::kRowStages];
  uint64_t exchange_full[Tile::kConsumers]; // for the half that a warpgroup hands over
  uint64_t exchange_empty[Tile::kConsumers];
};
template <typename Heads> inline constexpr int kSharedBytes = sizeof(Shared<Heads>) + 1024;
static_assert(kSharedBytes<SixHeads> <= kMostSharedBytes &&
                  kSharedBytes<AnyHeads> <= kMostSharedBytes &&
                  kSharedBytes<Wide<SixHeads>> <= kMostSharedBytes &&
                  kSharedBytes<Wide<AnyHeads>> <= kMostSharedBytes,
              "one CTA a multiprocessor");

} // namespace nsa::kernels::list_backward
