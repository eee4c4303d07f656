#pragma once
// The tile of the decoding kernels. Another tile is a change of this file.

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::decode {

struct Tile {
  static constexpr int kWarps = 4; // each attends to keys of its own
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kStepKeys = 32;   // that a warp attends to at once: 8 KiB of keys and values
  static constexpr int kResident = 3;    // CTAs a multiprocessor, which bounds registers
  static constexpr int kWaves = 3;       // of CTAs with compressed keys, so that selections overlap
  static constexpr int kMostPieces = 64; // of a branch: who joins them keeps their statistics
};
inline constexpr int kRowsOfBlock = kBlock / kCompressStride; // compressed rows that begin in it
inline constexpr int kStepBlocks = Tile::kStepKeys / kRowsOfBlock;
inline constexpr int kLaneKeys = 8; // consecutive keys of a step that a lane of a quad holds
static_assert(kLaneKeys * 4 == Tile::kStepKeys, "a quad holds a step's keys");
static_assert(kLaneKeys % kRowsOfBlock == 0, "a lane holds whole blocks");
static_assert(kBlock % Tile::kStepKeys == 0, "a step is of one selected block");
static_assert(kCompressLength == 2 * kCompressStride, "the weights of block_sums()");

} // namespace nsa::kernels::decode
