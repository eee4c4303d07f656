#pragma once
// The sizes of the output layer's product with cross-entropy. cluster_product/ has its tile.

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/cluster_product/config.h"
#include "nsa_model/kernels/common/device.cuh"
#include "nsa_model/kernels/vocabulary_product/vocabulary_product.h"

namespace nsa::kernels::vocabulary_product {

using namespace cluster_product;

inline constexpr int kPieceRows = Tile::kRows * Tile::kCluster;
inline constexpr int kPieceColumns = Tile::kColumns;
// The last piece of a row may have half of its columns inside the vocabulary.
inline constexpr int kHalfColumns = kPieceColumns / 2;
inline constexpr int kStages = 4;
// Step of the first computing warpgroup with which the second one begins a piece.
inline constexpr int kLead = 1;
// A computing warp's strip of shared memory has half of a piece's columns.
inline constexpr int kHalfStripBytes = kHalfColumns / kPanelColumns * kPanelBytes;
inline constexpr int kHalfPairs = kSums / 4; // pairs of a lane's sums in half of the columns
inline constexpr int kShared =
    kStages * kStageBytes + Tile::kConsumerWarps * kHalfStripBytes + 1024;
static_assert(kShared <= kMostSharedBytes, "one CTA a multiprocessor");
static_assert(kLead < kStages,
              "the first warpgroup reaches this step with stages that nobody releases");

constexpr bool serves_sizes(int rows, int columns, int inner) {
  constexpr int kHopper = 9; // major compute capability
  return serves::vocabulary_product(kHopper, rows, columns, inner);
}
static_assert(serves_sizes(1, kHalfColumns, Tile::kDepth) &&
                  !serves_sizes(1, kHalfColumns / 2, Tile::kDepth) &&
                  !serves_sizes(1, kHalfColumns, Tile::kDepth / 2),
              "columns are half pieces, and a product is whole steps");

__host__ __device__ constexpr int pieces(int count, int size) {
  return (count + size - 1) / size;
}

// The pieces of a product, in the order in which clusters take them: rows first. So clusters that
// run at the same time share few columns of the weight, which memory then sends once. All rows of x
// stay in L2.
struct Grid {
  int row_pieces, column_pieces;
  __host__ __device__ constexpr int count() const { return row_pieces * column_pieces; }
  __host__ __device__ constexpr int padded_rows() const { return row_pieces * kPieceRows; }
  __host__ __device__ constexpr Piece piece(int index) const {
    return {index % row_pieces * kPieceRows, index / row_pieces * kPieceColumns, false};
  }
};
__host__ __device__ constexpr Grid grid_of(int rows, int columns) {
  return {pieces(rows, kPieceRows), pieces(columns, kPieceColumns)};
}

// The workspace: a logit and a column of each row, then sums of exponentials.
struct Workspace {
  float* label_logit; // [padded rows] = c log2 e
  int* label;         // [padded rows]; -1 for an unknown label
  float* sums;        // [columns / kHalfColumns, padded rows]
};
inline Workspace cut(float* workspace, const Grid& grid) {
  return {workspace, reinterpret_cast<int*>(workspace + grid.padded_rows()),
          workspace + 2 * grid.padded_rows()};
}

struct ProductParams {
  int rows, columns, inner;
  Grid grid;
  int rounds, last_round; // clusters compute `rounds` pieces, the first `last_round` one more
  const float* label_logit;
  const int* label;
  float* sums;
  __nv_bfloat16* exponentials;
};

} // namespace nsa::kernels::vocabulary_product
