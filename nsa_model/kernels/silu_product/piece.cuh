#pragma once
// The part of the product that a cluster computes, and its sums by one warpgroup. Device code only.

#include "nsa_model/kernels/silu_product/config.h"

namespace nsa::kernels::silu_product {

#if NSA_HOPPER_CODE

inline constexpr int kBarrierBytes = sizeof(uint64_t);

// The piece that a cluster computes in turn `item`: a tile, or half of its columns.
struct Piece {
  int row, column; // first row and column of the whole cluster
  bool narrow;
};
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

// Computes the sums of one piece by one computing warpgroup, over `steps` stages from `ring` on.
// `release` returns a stage. `begun` and `beside` are called when a step is in flight and the
// previous one is done.
template <int kColumns, Major kRight, typename Release, typename Begun, typename Beside>
__device__ __forceinline__ void multiply(float (&sum)[kSums], int steps, int half, uint32_t tiles,
                                         uint32_t full, Ring<Tile::kStages>& ring, Release release,
                                         Begun begun, Beside beside) {
  if constexpr (kColumns == Tile::kNarrowColumns) {
#pragma unroll
    for (int i = 0; i < kLaneFloats<Tile::kNarrowColumns>; ++i)
      sum[i] = 0.0f;
  }
  int last = 0;
  for (int k = 0; k < steps; ++k) {
    barrier_wait(full + ring.stage * kBarrierBytes, ring.phase);
    const uint32_t stage = tiles + ring.stage * kStageBytes;
    const uint32_t a = tile_descriptor(stage + half * kHalfBytes);
    const uint32_t b =
        tile_descriptor(stage + kLeftBytes, kRight == Major::kMN ? kPartBytes : kNoPanels);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Tile::kDepth / kWgmmaDepth; ++i) {
      const uint32_t a_step = a + i * step_k16<Major::kK>(), b_step = b + i * step_k16<kRight>();
      if constexpr (kColumns == Tile::kColumns) {
        Wgmma<Tile::kColumns>::template shared<kRight>(sum, a_step, b_step, k > 0 || i > 0);
      } else {
        Wgmma<Tile::kNarrowColumns>::template shared<Major::kK, kRight>(
            part<kLaneFloats<Tile::kNarrowColumns>>(sum), a_step, b_step);
      }
    }
    wgmma_commit();
    if (k > 0) {
      wgmma_wait<1>();
      __syncwarp();
      release(last);
    }
    begun(k);
    beside(k);
    last = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  pin(sum);
  __syncwarp();
  release(last);
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::silu_product
