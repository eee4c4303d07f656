#pragma once
// The sizes and parameters of the MLP's products next to SiLU. cluster_product/ has their tile.

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/cluster_product/config.h"
#include "nsa_model/kernels/silu_product/silu_product.h"

namespace nsa::kernels::silu_product {

using namespace cluster_product;

// Whether the kernels support these sizes.
constexpr bool serves_sizes(int rows, int columns, int inner) {
  constexpr int kHopper = 9; // major compute capability
  return serves::silu_product(kHopper, rows, columns, inner);
}
static_assert(serves_sizes(Tile::kRows * Tile::kCluster, Tile::kColumns, Tile::kDepth) &&
                  !serves_sizes(Tile::kRows, Tile::kColumns, Tile::kDepth) &&
                  !serves_sizes(Tile::kRows * Tile::kCluster, Tile::kNarrowColumns, Tile::kDepth),
              "sizes that are served are whole tiles of a cluster");

inline constexpr int kRowVectors = kRowBytes / kVectorBytes; // of a strip's row; a lane each

// The pass of the MLP: forward, backward, or backward that also recomputes silu(before).
enum class Pass { kForward, kBackward, kBackwardWithAfter };

struct ProductParams {
  int rows, columns, inner;
  // Each cluster computes `rounds` pieces, and `last_round` clusters compute one more.
  int rounds, last_round;
  bool narrow;                    // those have half a tile's columns
  const __nv_bfloat16* before_in; // backward
  __nv_bfloat16* before_out;      // forward
  __nv_bfloat16* out;             // after, or d_before
  __nv_bfloat16* after_out;       // kBackwardWithAfter
};

} // namespace nsa::kernels::silu_product
