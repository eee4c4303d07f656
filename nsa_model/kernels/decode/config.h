#pragma once
// The tile of the decoding kernel. To use another tile, change this file.

#include "nsa_model/kernels/common/lanes.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::decode {

struct Tile {
  // Warps of a CTA with up to 8 heads a group. With more heads there are half as many, because
  // their results are twice as long. Each warp attends to its own keys.
  template <int kHalves> static constexpr int kWarps = 8 / kHalves;
  template <int kHalves> static constexpr int kThreads = kWarpThreads * kWarps<kHalves>;
  // Warps of a CTA that choose blocks while the others attend to the window.
  template <int kHalves> static constexpr int kChoosers = kWarps<kHalves> / 2;
  // Keys that a warp attends to at once: 8 KiB of keys and values.
  static constexpr int kStepKeys = 32;
  static constexpr int kResident = 2;     // CTAs per multiprocessor, which limits the registers
  static constexpr int kMostCtas = 16;    // CTAs of a cluster; Hopper's limit
  static constexpr int kPortableCtas = 8; // CUDA's portable cluster size
  static constexpr int kOutStride =
      68; // floats of a row of O in shared memory; the padding reduces bank conflicts
};
inline constexpr int kClustersSince = 9; // major compute capability
// Heads in one half of a product's rows. A lane has one row of each half, starting at lane / 4.
inline constexpr int kHalfHeads = kRowsApart;
// Compressed rows that begin in a block.
inline constexpr int kRowsOfBlock = kBlock / kCompressStride;
inline constexpr int kStepBlocks = Tile::kStepKeys / kRowsOfBlock;
inline constexpr int kBlockSteps = kBlock / Tile::kStepKeys;
inline constexpr int kLaneKeys = 8; // consecutive keys of a step that a lane of a quad holds
inline constexpr int kLaneDims = kHeadDim / 4; // dimensions of O that a lane of a quad holds
static_assert(2 * kHalfHeads == kMostHeads, "two halves hold all heads of a group");
static_assert(kLaneKeys * 4 == Tile::kStepKeys, "a quad holds a step's keys");
static_assert(kLaneKeys % kRowsOfBlock == 0, "a lane holds whole blocks");
static_assert(kBlock % Tile::kStepKeys == 0, "a step is of one selected block");
static_assert(kCompressLength == 2 * kCompressStride, "the weights of block_sums()");
static_assert(kHeadDim / Tile::kMostCtas == 4, "a CTA joins float4 of O at least");

} // namespace nsa::kernels::decode
