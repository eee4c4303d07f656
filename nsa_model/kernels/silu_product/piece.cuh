#pragma once
// The part of the product that a cluster computes in turn `item`. Device code only.

#include "nsa_model/kernels/silu_product/config.h"

namespace nsa::kernels::silu_product {

#if NSA_HOPPER_CODE

// If the last round has less than half a tile for each cluster, its pieces are narrow.
__device__ __forceinline__ Piece piece_of(const ProductParams& params, int item) {
  const int cluster = static_cast<int>(blockIdx.x) / Tile::kCluster;
  const int clusters = static_cast<int>(gridDim.x) / Tile::kCluster;
  const int column_tiles = params.columns / Tile::kColumns;
  const bool narrow = params.narrow && item == params.rounds;
  const int tile = item * clusters + (narrow ? cluster / 2 : cluster);
  return {tile / column_tiles * (Tile::kRows * Tile::kCluster),
          tile % column_tiles * Tile::kColumns + (narrow ? cluster % 2 * Tile::kNarrowColumns : 0),
          narrow};
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::silu_product
