#pragma once
// The tile of the residual sum with RMSNorm. Another tile is a change of this file.

#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/rms_norm/rms_norm.h"

namespace nsa::kernels::rms_norm {

struct Tile {
  static constexpr int kWarps = 8; // a row each
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kPassColumns =
      kWarpThreads * kVectorValues;     // that a warp's lanes hold a vector of
  static constexpr int kMostPasses = 4; // instances of the kernels
  static constexpr int kResident =
      2; // CTAs of the backward a multiprocessor, which bounds registers
  // CTAs of the backward, each with a partial sum of the gain's gradient: two for each of an H200's
  // 132 multiprocessors. A constant, so that the order of the sums is the same on every GPU.
  static constexpr int kParts = 264;
  static constexpr int kSumColumns = 32; // of a CTA of the second stage
  static constexpr int kSumRows = 32;    // partial sums that it adds side by side
};
static_assert(rms_norm_serves(Tile::kPassColumns) &&
                  rms_norm_serves(Tile::kMostPasses * Tile::kPassColumns) &&
                  !rms_norm_serves((Tile::kMostPasses + 1) * Tile::kPassColumns),
              "start_for_width has an instance for each width that is served");
static_assert(Tile::kPassColumns % Tile::kSumColumns == 0,
              "a row is whole CTAs of the second stage");
static_assert(Tile::kSumColumns * Tile::kSumRows <= 1024, "threads of a CTA");

} // namespace nsa::kernels::rms_norm
