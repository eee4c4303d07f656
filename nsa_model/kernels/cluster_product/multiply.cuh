#pragma once
// The sums of a piece by one computing warpgroup, and their way to shared memory. Device code only.

#include "nsa_model/kernels/cluster_product/config.h"

namespace nsa::kernels::cluster_product {

#if NSA_HOPPER_CODE

inline constexpr int kBarrierBytes = sizeof(uint64_t);

// Computes the sums of one piece by one computing warpgroup, over `steps` stages from `ring` on.
// `release` returns a stage. `begun` and `beside` are called when a step is in flight and the
// previous one is done.
template <int kColumns, Major kRight, int kStages, typename Release, typename Begun,
          typename Beside>
__device__ __forceinline__ void multiply(float (&sum)[kSums], int steps, int half, uint32_t tiles,
                                         uint32_t full, Ring<kStages>& ring, Release release,
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

// Writes values of a warp (16 rows) to its strip: panels of 64 columns, rows of 128 bytes,
// swizzled. `pair(i)` packs the lane's values 2i and 2i + 1 of these columns.
template <int kColumns, typename Pair>
__device__ __forceinline__ void stage(uint32_t strip, int lane, Pair pair) {
  // Rows 8 (matrix % 2), columns 8 (matrix / 2).
  const int matrix = lane / kMatrixRows, in_matrix = lane % kMatrixRows;
  const uint32_t row = strip + ((matrix & 1) * kMatrixRows + in_matrix) * kRowBytes;
#pragma unroll
  for (int j = 0; j < kColumns / (2 * kGroupColumns); ++j) {
    const int chunk = 2 * (j % 4) + (matrix >> 1);
    store_matrix(row + (j / 4) * kPanelBytes + ((chunk ^ in_matrix) << 4), pair(4 * j),
                 pair(4 * j + 1), pair(4 * j + 2), pair(4 * j + 3));
  }
}
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::cluster_product
