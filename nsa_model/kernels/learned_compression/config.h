#pragma once
// The tiles of the learned compression. To use another tile, change this file.

#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/learned_compression/learned_compression.h"

namespace nsa::kernels::learned_compression {

inline constexpr int kWidth = kHeadDim, kHidden = kCompressionHidden;
inline constexpr int kBlockWidth = kCompressLength * kWidth; // columns of fc1
// Shared memory that a CTA may use on every GPU from 8.0.
inline constexpr int kSharedBytes = 99 * 1024;

// All kernels have warps of 32 rows, two of them beside each other. The two m16n8k16 products of a
// warp share each fragment of the right factor.
struct CommonTile {
  static constexpr int kColumnWarps = 2;
  static constexpr int kWarpTileRows = 2 * kWarpRows;
};

struct ForwardTile : CommonTile {
  static constexpr int kRowWarps = 2;
  static constexpr int kWarps = kRowWarps * kColumnWarps;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kRows = kWarpTileRows * kRowWarps; // compressed tokens
  static constexpr int kWarpColumns = kHidden / kColumnWarps;
  static constexpr int kStages = 3; // stages of one token of each block and its columns of fc1
  static constexpr int kStageBytes = kTileBytes<kWidth, kRows> + kTileBytes<kWidth, kHidden>;
  // The last tile holds fc2.
  static constexpr int kBytes = kStages * kStageBytes + kTileBytes<kHidden, kWidth>;
};
static_assert(ForwardTile::kRows == kWarpRows * ForwardTile::kWarps,
              "in the second product each warp has 16 whole rows, so that it can rotate them");
static_assert(kTileBytes<kHidden, ForwardTile::kRows> <=
                  ForwardTile::kStages * ForwardTile::kStageBytes,
              "the hidden layer lies where the stages were");
static_assert(ForwardTile::kBytes <= kSharedBytes, "a CTA fits on every GPU");

struct HiddenTile { // tile of the hidden layer's gradient
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kRows = kWarpRows * kWarps;
  // CTAs for keys and for values, each with a partial sum of fc2's gradient. It is a constant, so
  // the order of the sums is the same on every GPU. An H100 has 132 multiprocessors for the 128
  // CTAs.
  static constexpr int kMostParts = 64;
  static constexpr int kPartFloats = kWidth * kHidden + kHidden; // fc2's gradient, column sums
  static constexpr int kBytes =
      // fc2, hidden, d_out
      2 * kTileBytes<kHidden, kWidth> + kTileBytes<kWidth, kRows>;
};
static_assert(HiddenTile::kRows == kWidth, "the tiles of fc2 and of hidden rows have one size");
static_assert(HiddenTile::kWarps * kWarpRows == kWidth, "a warp has 16 rows of fc2's gradient");
static_assert(HiddenTile::kThreads == kHidden, "a thread adds one column sum");

struct TokenTile : CommonTile { // tile of the tokens' gradient
  static constexpr int kRowWarps = 2;
  static constexpr int kWarps = kRowWarps * kColumnWarps;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kRows = kWarpTileRows * kRowWarps; // runs of 16 tokens
  static constexpr int kWarpColumns = kWidth / kColumnWarps;
  static constexpr int kOverlap = kCompressLength / kCompressStride; // blocks that contain a token
  static constexpr int kStages = 4; // stages of fc1's columns of one token of the block
  static constexpr int kStageBytes = kTileBytes<kWidth, kHidden>;
  static constexpr int kLeftBytes = kOverlap * kTileBytes<kHidden, kRows>;
  static constexpr int kBytes = kLeftBytes + kStages * kStageBytes;
  static constexpr int kWantedCtas = 264; // two for each of an H100's multiprocessors
};
static_assert(TokenTile::kOverlap == 2, "a token lies in a block and in the one before it");
static_assert(TokenTile::kBytes <= kSharedBytes, "a CTA fits on every GPU");
static_assert(TokenTile::kWarpColumns == 4 * kGroupColumns, "a quad turns four groups of columns");

struct WeightTile { // tile of fc1's gradient
  static constexpr int kRowWarps = 2, kColumnWarps = 2;
  static constexpr int kWarps = kRowWarps * kColumnWarps;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kDepth = 32; // blocks in a step
  static constexpr int kStages = 4;
  static constexpr int kStageBytes = kTileBytes<kHidden, kDepth> + 2 * kTileBytes<kWidth, kDepth>;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kRowGroups = kHidden / kRowWarps / kWarpRows; // groups of 16 rows in a warp
  // Parts of the blocks, each with a partial sum. It is a constant, as above: 16 columns of tokens,
  // keys and values, and eight parts are 256 CTAs, two for nearly each of an H100's
  // multiprocessors.
  static constexpr int kMostParts = 8;
};
static_assert(
    WeightTile::kColumnWarps * kCompressStride == kCompressLength,
    "a column of warps has a token of the first half of each block, the other of the second");
static_assert(WeightTile::kBytes <= kSharedBytes, "a CTA fits on every GPU");

struct SumTile { // tile of the last sums; a thread sums one weight or four
  static constexpr int kThreads = 256;
  static constexpr int kFc1Values = 4;
  static constexpr int kFc1Ctas = kHidden * kBlockWidth / (kThreads * kFc1Values);
  static constexpr int kFc2Ctas = kWidth * kHidden / kThreads;
  static constexpr int kPositionParts = 4; // parts of the hidden units, added in parallel
  static constexpr int kPositionColumns = kThreads / kPositionParts;
  static constexpr int kPositionCtas = kBlockWidth / kPositionColumns;
  static constexpr int kCtas = kFc1Ctas + kFc2Ctas + kPositionCtas;
};
static_assert(kBlockWidth % (SumTile::kThreads * SumTile::kFc1Values) == 0,
              "a CTA has columns of one hidden unit");
static_assert(SumTile::kThreads >= kHidden, "a thread adds one column sum");

} // namespace nsa::kernels::learned_compression
