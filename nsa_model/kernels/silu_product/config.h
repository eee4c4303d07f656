#pragma once
// The tile of the MLP's products next to SiLU. To use another tile, change this file.

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/silu_product/silu_product.h"

namespace nsa::kernels::silu_product {

struct Tile {
  static constexpr int kCluster = 2;   // CTAs that compute a tile together
  static constexpr int kRows = 128;    // rows of a CTA
  static constexpr int kColumns = 256; // columns of the cluster; each CTA computes all
  static constexpr int kDepth = 64;    // contraction length of a step
  static constexpr int kStages = 3;
  static constexpr int kConsumers = 2; // warpgroups that compute
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  // If the last round has less than half a tile for each cluster, a piece has half the columns.
  static constexpr int kNarrowColumns = kColumns / 2;
  // setmaxnreg: the computing warpgroups get the registers that the loading one releases.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};
static_assert(Tile::kRows == kWgmmaRows * Tile::kConsumers,
              "a computing warpgroup owns one m64 tile");
static_assert(Tile::kDepth * 2 == kRowBytes, "a step is one swizzled row of each operand's tile");
// Whether the kernels support these sizes.
constexpr bool serves_sizes(int rows, int columns, int inner) {
  constexpr int kHopper = 9; // major compute capability
  return serves::silu_product(kHopper, rows, columns, inner);
}
static_assert(serves_sizes(Tile::kRows * Tile::kCluster, Tile::kColumns, Tile::kDepth) &&
                  !serves_sizes(Tile::kRows, Tile::kColumns, Tile::kDepth) &&
                  !serves_sizes(Tile::kRows * Tile::kCluster, Tile::kNarrowColumns, Tile::kDepth),
              "sizes that are served are whole tiles of a cluster");
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
inline constexpr int kRowVectors = kRowBytes / kVectorBytes; // a lane each
inline constexpr int kPanelBytes = kStripRows * kRowBytes;   // 64 columns of a strip
inline constexpr int kStripBytes = Tile::kColumns / kPanelColumns * kPanelBytes;
inline constexpr int kSharedBytes =
    Tile::kStages * kStageBytes + Tile::kConsumerWarps * kStripBytes + 1024;
static_assert(kSharedBytes <= kMostSharedBytes, "one CTA a multiprocessor");

// Accumulators of a lane for a wide piece.
inline constexpr int kSums = kLaneFloats<Tile::kColumns>;

// The pass of the MLP: forward, backward, or backward that also recomputes silu(before).
enum class Pass { kForward, kBackward, kBackwardWithAfter };

struct ProductParams {
  int rows, columns, inner;
  // Each cluster computes `rounds` pieces, and `last_round` clusters compute one more.
  int rounds, last_round;
  bool narrow;                    // those have half a tile's columns
  const __nv_bfloat16* before_in; // backward
  __nv_bfloat16* before_out;      // forward
  __nv_bfloat16* out;             // after, or d_before
  __nv_bfloat16* after_out;       // kBackwardWithAfter
};

} // namespace nsa::kernels::silu_product
