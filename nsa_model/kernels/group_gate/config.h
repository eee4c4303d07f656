#pragma once
// Sizes of the gate's kernels. To use another tile, change this file.

#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/group_gate/group_gate.h"

namespace nsa::kernels::group_gate {

inline constexpr int kWidth = kGateWidth, kHidden = kGateHidden, kBranches = kGateBranches;

// Columns of a product are hidden units or elements of the mean.
inline constexpr int kDepth = kMmaDepth, kGroup = kGroupColumns;
inline constexpr int kUnits = kHidden / kGroup;
inline constexpr int kHiddenSteps = kHidden / kDepth;
inline constexpr int kWidthGroups = kWidth / kGroup;
// A quad loads a chunk of a row at once. Each lane loads kVectorValues elements as pairs.
inline constexpr int kChunk = 4 * kVectorValues;
inline constexpr int kChunks = kWidth / kChunk;
inline constexpr int kPairs = kVectorValues / 2;

struct Tile {
  static constexpr int kRows = kWarpRows;
  static constexpr int kWarps = 4; // each with its own tiles
  static constexpr int kThreads = kWarpThreads * kWarps;
  // Upper limit: eight for each of an H200's multiprocessors.
  static constexpr int kForwardCtas = 1056;
  // CTAs of the backward, each with a partial sum: two for each of an H200's 132 multiprocessors.
  // It is a constant, so the order of the sums is the same on every GPU.
  static constexpr int kBackwardCtas = 264;
  static constexpr int kSumRows = 32; // second stage: partial sums that are added in parallel
};
inline constexpr int kWeights = kHidden * kWidth + kBranches * kHidden; // weights in a partial sum

static_assert(kHidden % (2 * kGroup) == 0, "a product's depth is two groups of units");
static_assert(kWidth % kChunk == 0, "a row is whole chunks");
static_assert(kBranches == 3, "a gate is the share of one of three scores");
static_assert(kWeights % kWarpThreads == 0, "a CTA of the second stage adds 32 weights");

} // namespace nsa::kernels::group_gate
