#pragma once
// The tile of products that a cluster of two CTAs computes (silu_product, vocabulary_product), and
// its shared memory. To use another tile, change this file.

#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::cluster_product {

struct Tile {
  static constexpr int kCluster = 2;   // CTAs that compute a tile together
  static constexpr int kRows = 128;    // rows of a CTA
  static constexpr int kColumns = 256; // columns of the cluster; each CTA computes all
  static constexpr int kDepth = 64;    // contraction length of a step
  static constexpr int kStages = 3;
  static constexpr int kConsumers = 2; // warpgroups that compute
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  static constexpr int kNarrowColumns = kColumns / 2; // columns of a narrow piece
  // setmaxnreg: the computing warpgroups get the registers that the loading one releases.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};
static_assert(Tile::kRows == kWgmmaRows * Tile::kConsumers,
              "a computing warpgroup owns one m64 tile");
static_assert(Tile::kDepth * 2 == kRowBytes, "a step is one swizzled row of each operand's tile");
static_assert(kWarpgroupThreads *
                      (Tile::kProducerRegisters + Tile::kConsumers * Tile::kConsumerRegisters) <=
                  65536,
              "registers of a multiprocessor");

// Shared memory: stages of both operands, then a strip of sums for each computing warp.
inline constexpr int kPanelColumns = kRowBytes / 2; // columns of a swizzled tile: 64
inline constexpr int kLeftBytes = Tile::kRows * kRowBytes;
inline constexpr int kRightBytes = Tile::kColumns * kRowBytes;
inline constexpr int kStageBytes = kLeftBytes + kRightBytes;
inline constexpr int kHalfBytes = kWgmmaRows * kRowBytes; // a warpgroup's half of the left operand
inline constexpr int kPartBytes = kPanelColumns * kRowBytes; // one copy's part of the right operand
inline constexpr int kStripRows = kWarpRows;
inline constexpr int kPanelBytes = kStripRows * kRowBytes; // 64 columns of a strip
inline constexpr int kStripBytes = Tile::kColumns / kPanelColumns * kPanelBytes;
inline constexpr int kSharedBytes =
    Tile::kStages * kStageBytes + Tile::kConsumerWarps * kStripBytes + 1024;
static_assert(kSharedBytes <= kMostSharedBytes, "one CTA a multiprocessor");

// Accumulators of a lane for a wide piece.
inline constexpr int kSums = kLaneFloats<Tile::kColumns>;

// What a cluster computes at a time: a tile, or a part of it with half of its columns.
struct Piece {
  int row, column; // first row and column of the whole cluster
  bool narrow;
};

} // namespace nsa::kernels::cluster_product
