#pragma once
// The tile of the MLP's products next to SiLU. Another tile is a change of this file.

#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/silu_product/silu_product.h"

namespace nsa::kernels::silu_product {

struct Tile {
  static constexpr int kCluster = 2;   // CTAs that compute a tile together
  static constexpr int kRows = 128;    // of a CTA
  static constexpr int kColumns = 256; // of the cluster, each CTA has all
  static constexpr int kDepth = 64;    // of the contraction, a step
  static constexpr int kStages = 3;
  static constexpr int kConsumers = 2; // warpgroups that compute
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  // In a last round with less than half a tile for each cluster, a piece has half the columns.
  static constexpr int kNarrowColumns = kColumns / 2;
  // setmaxnreg: what the loading warpgroup gives away, the computing ones get.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};
static_assert(Tile::kRows == kWgmmaRows * Tile::kConsumers,
              "a computing warpgroup owns one m64 tile");
static_assert(Tile::kDepth * 2 == kRowBytes, "a step is one swizzled row of each operand's tile");
static_assert(silu_product_serves(Tile::kRows * Tile::kCluster, Tile::kColumns, Tile::kDepth) &&
                  !silu_product_serves(Tile::kRows, Tile::kColumns, Tile::kDepth) &&
                  !silu_product_serves(Tile::kRows * Tile::kCluster, Tile::kNarrowColumns,
                                       Tile::kDepth),
              "sizes that are served are whole tiles of a cluster");
static_assert(kWarpgroupThreads *
                      (Tile::kProducerRegisters + Tile::kConsumers * Tile::kConsumerRegisters) <=
                  65536,
              "registers of a multiprocessor");

// Shared memory: stages of both operands, then a strip of sums for each computing warp.
inline constexpr int kPanelColumns = kRowBytes / 2; // of a swizzled tile: 64
inline constexpr int kLeftBytes = Tile::kRows * kRowBytes;
inline constexpr int kRightBytes = Tile::kColumns * kRowBytes;
inline constexpr int kStageBytes = kLeftBytes + kRightBytes;
inline constexpr int kHalfBytes = kWgmmaRows * kRowBytes;    // of the left operand: a warpgroup's
inline constexpr int kPartBytes = kPanelColumns * kRowBytes; // of the right one: one copy's
inline constexpr int kStripRows = kWarpRows;
inline constexpr int kPanelBytes = kStripRows * kRowBytes; // 64 columns of a strip
inline constexpr int kStripBytes = Tile::kColumns / kPanelColumns * kPanelBytes;
inline constexpr int kSharedBytes =
    Tile::kStages * kStageBytes + Tile::kConsumerWarps * kStripBytes + 1024;
static_assert(kSharedBytes <= kMostSharedBytes, "one CTA a multiprocessor");

// Accumulators that a lane has of a wide piece.
inline constexpr int kSums = kLaneFloats<Tile::kColumns>;

// What a product is part of: the MLP's forward; its backward; that, with silu(before) again.
enum class Pass { kForward, kBackward, kBackwardWithAfter };

struct ProductParams {
  int rows, columns, inner;
  int rounds, last_round;         // pieces of every cluster, and how many clusters have one more:
  bool narrow;                    // half a tile's columns where this is set
  const __nv_bfloat16* before_in; // backward
  __nv_bfloat16* before_out;      // forward
  __nv_bfloat16* out;             // after, or d_before
  __nv_bfloat16* after_out;       // kBackwardWithAfter
};

} // namespace nsa::kernels::silu_product
