#pragma once
// Sizes of the gate's kernels. Another tile is a change of this file.

#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/group_gate/group_gate.h"

namespace nsa::kernels::group_gate {

inline constexpr int kWidth = kGateWidth, kHidden = kGateHidden, kBranches = kGateBranches;

// Columns of a product are hidden units, or elements of the mean.
inline constexpr int kDepth = kMmaDepth, kGroup = kGroupColumns;
inline constexpr int kUnits = kHidden / kGroup;
inline constexpr int kHiddenSteps = kHidden / kDepth;
inline constexpr int kWidthGroups = kWidth / kGroup;
// A quad loads a chunk of a row at once, kVectorValues elements a lane, as pairs.
inline constexpr int kChunk = 4 * kVectorValues;
inline constexpr int kChunks = kWidth / kChunk;
inline constexpr int kPairs = kVectorValues / 2;

struct Tile {
  static constexpr int kRows = kWarpRows;
  static constexpr int kWarps = 4; // each with tiles of its own
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kForwardCtas = 1056; // at most: eight for each of an H200's multiprocessors
  // CTAs of the backward, each with a partial sum: two for each of an H200's 132 multiprocessors. A
  // constant, so that the order of the sums is the same on every GPU.
  static constexpr int kBackwardCtas = 264;
  static constexpr int kSumRows = 32; // second stage: partial sums that are added side by side
};
inline constexpr int kWeights = kHidden * kWidth + kBranches * kHidden; // of a partial sum

static_assert(kHidden % (2 * kGroup) == 0, "a product's depth is two groups of units");
static_assert(kWidth % kChunk == 0, "a row is whole chunks");
static_assert(kBranches == 3, "a gate is the share of one of three scores");
static_assert(kWeights % kWarpThreads == 0, "a CTA of the second stage adds 32 weights");

} // namespace nsa::kernels::group_gate
