#pragma once
// The tile of the selected branch's backward. Another tile is a change of this file.

#include "nsa_model/kernels/block_backward/columns.cuh"
#include "nsa_model/kernels/block_lists/claimed_units.cuh"
#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::list_backward {

struct Tile {
  static constexpr int kTokens = 16; // of a chunk, of six heads
  static constexpr int kRows = kTokens * kHeadsPerGroup;
  static constexpr int kConsumers = 2; // warpgroups that compute, chunks in turn
  static constexpr int kRowStages = 2 * kConsumers;
  static constexpr int kKeyStages = 2;
  static constexpr int kProducerWarps = 4; // one warpgroup that loads
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  static constexpr int kRowsBytes = kRows * kRowBytes;
  static constexpr int kResultFloats = kBlock * kHeadDim; // of dK, or of dV, of a unit
  // Tokens that a warp gathers, and those whose dQ it stores, of six heads.
  static constexpr int kWarpTokens = kTokens / kProducerWarps;
  // setmaxnreg: what the producers give away, the consumers get.
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 224;
};
static_assert(Tile::kConsumers == 2, "two warpgroups exchange halves of dK and dV");
static_assert(Tile::kRowStages % Tile::kConsumers == 0, "a stage serves one warpgroup");
static_assert(kBlock == kWgmmaRows, "the keys of a block are the M of a product");
static_assert(Tile::kRows % kWgmmaDepth == 0, "dK and dV contract over the rows of a chunk");
static_assert(Tile::kRows % (kHeadsPerGroup * kGroupFloats) == 0,
              "a lane's columns repeat every four tokens (Columns)");
static_assert(Tile::kProducerWarps == kWarpgroupWarps, "setmaxnreg is a warpgroup's");
static_assert(Tile::kTokens % Tile::kProducerWarps == 0, "warps have equal parts");
static_assert(kWarpgroupThreads *
                      (Tile::kProducerRegisters + Tile::kConsumers * Tile::kConsumerRegisters) <=
                  65536,
              "registers of a multiprocessor");

template <typename Heads> struct Shared {
  // With padding rows there are entries for "tokens" behind the last, which say that nothing is
  // stored.
  static constexpr int kTokens = Heads::kPads ? Tile::kRows + 1 : Tile::kTokens;
  alignas(1024) uint8_t q[Tile::kRowStages][Tile::kRowsBytes];
  alignas(1024) uint8_t d_out[Tile::kRowStages][Tile::kRowsBytes];
  ClaimedUnits<Tile::kKeyStages> units;
  alignas(1024) uint8_t d_scores[Tile::kConsumers][Tile::kRowsBytes];
  alignas(1024) uint8_t d_queries[Tile::kConsumers][Tile::kRowsBytes];
  alignas(1024)
      float4 exchange[Tile::kConsumers][kLaneFloats<kHeadDim> / kGroupFloats][kWarpgroupThreads];
  alignas(128) float statistics[Tile::kRowStages][chunk_statistics<Heads>(Tile::kRows)];
  int32_t pairs[Tile::kRowStages][kTokens]; // row of PairRows * 16 + slot; -1: padding
  int32_t tokens[Tile::kRowStages][kTokens];
  alignas(8) uint64_t rows_full[Tile::kRowStages];
  uint64_t rows_empty[Tile::kRowStages];
  uint64_t exchange_full[Tile::kConsumers]; // of the half that a warpgroup hands over
  uint64_t exchange_empty[Tile::kConsumers];
};
template <typename Heads> inline constexpr int kSharedBytes = sizeof(Shared<Heads>) + 1024;
static_assert(kSharedBytes<SixHeads> <= kMostSharedBytes &&
                  kSharedBytes<AnyHeads> <= kMostSharedBytes,
              "one CTA a multiprocessor");

} // namespace nsa::kernels::list_backward
