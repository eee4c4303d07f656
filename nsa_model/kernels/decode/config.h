#pragma once
// The tile of the decoding kernel. Another tile is a change of this file.

#include "nsa_model/kernels/common/lanes.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::decode {

struct Tile {
  // Warps of a CTA with up to 8 heads a group; half as many with more, whose results are twice as
  // long. Each attends to keys of its own.
  template <int kHalves> static constexpr int kWarps = 8 / kHalves;
  template <int kHalves> static constexpr int kThreads = kWarpThreads * kWarps<kHalves>;
  // Of a CTA's warps, those that choose blocks while the others attend to the window.
  template <int kHalves> static constexpr int kChoosers = kWarps<kHalves> / 2;
  static constexpr int kStepKeys = 32; // that a warp attends to at once: 8 KiB of keys and values
  static constexpr int kResident = 2;  // CTAs a multiprocessor, which bounds registers
  static constexpr int kMostCtas = 16; // of a cluster; Hopper's limit
  static constexpr int kPortableCtas = 8; // of a cluster on every such GPU, as CUDA calls it
  static constexpr int kOutStride =
      68; // floats of a row of O in shared memory: fewer bank conflicts
};
inline constexpr int kClustersSince = 9; // compute capability, its major number
// Heads that a half of a product's rows holds: a lane has one of each half, lane / 4.
inline constexpr int kHalfHeads = kRowsApart;
inline constexpr int kRowsOfBlock = kBlock / kCompressStride; // compressed rows that begin in it
inline constexpr int kStepBlocks = Tile::kStepKeys / kRowsOfBlock;
inline constexpr int kBlockSteps = kBlock / Tile::kStepKeys;
inline constexpr int kLaneKeys = 8; // consecutive keys of a step that a lane of a quad holds
inline constexpr int kLaneDims = kHeadDim / 4; // of O that a lane of a quad holds
static_assert(2 * kHalfHeads == kMostHeads, "two halves hold all heads of a group");
static_assert(kLaneKeys * 4 == Tile::kStepKeys, "a quad holds a step's keys");
static_assert(kLaneKeys % kRowsOfBlock == 0, "a lane holds whole blocks");
static_assert(kBlock % Tile::kStepKeys == 0, "a step is of one selected block");
static_assert(kCompressLength == 2 * kCompressStride, "the weights of block_sums()");
static_assert(kHeadDim / Tile::kMostCtas == 4, "a CTA joins float4 of O at least");

} // namespace nsa::kernels::decode
