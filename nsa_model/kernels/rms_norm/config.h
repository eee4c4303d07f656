#pragma once
// The tile of the residual sum with RMSNorm. To use another tile, change this file.

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/rms_norm/rms_norm.h"

namespace nsa::kernels::rms_norm {

struct Tile {
  static constexpr int kWarps = 8; // each owns a row
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kPassColumns =
      kWarpThreads * kVectorValues; // columns that the lanes of a warp cover with one vector each
  static constexpr int kMostPasses = 4; // number of kernel instances
  // CTAs of the backward per multiprocessor, which limits the registers.
  static constexpr int kResident = 2;
  // CTAs of the backward, each with a partial sum of the gain's gradient: two for each of an H200's
  // 132 multiprocessors. It is a constant, so the order of the sums is the same on every GPU.
  static constexpr int kParts = 264;
  static constexpr int kSumColumns = 32; // columns of a CTA of the second stage
  static constexpr int kSumRows = 32;    // partial sums that it adds in parallel
};
static_assert(serves::norm(Tile::kPassColumns) &&
                  serves::norm(Tile::kMostPasses * Tile::kPassColumns) &&
                  !serves::norm((Tile::kMostPasses + 1) * Tile::kPassColumns),
              "start_for_width has an instance for each width that is served");
static_assert(Tile::kPassColumns % Tile::kSumColumns == 0,
              "a row is whole CTAs of the second stage");
static_assert(Tile::kSumColumns * Tile::kSumRows <= 1024, "threads of a CTA");
static_assert(Tile::kPassColumns == Tile::kThreads, "a thread adds one column of each pass");
static_assert(Tile::kMostPasses * Tile::kPassColumns * Tile::kWarps * 3 * 2 <= 48 * 1024,
              "three rows of BF16 for each warp fit into shared memory without an attribute");

} // namespace nsa::kernels::rms_norm
