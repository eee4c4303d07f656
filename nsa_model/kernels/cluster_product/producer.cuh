#pragma once
// The loading thread and the barriers of its stages. Device code only.

#include "nsa_model/kernels/cluster_product/cluster.cuh"
#include "nsa_model/kernels/cluster_product/multiply.cuh"
#include "nsa_model/kernels/common/tensor_map.h"

namespace nsa::kernels::cluster_product {

#if NSA_HOPPER_CODE

// Addresses in a CTA's shared memory, and the CTA's number in its cluster.
struct ClusterStart {
  uint32_t tiles, strips, full, empty, order;
  int rank;
};
// Prepares the barriers. All threads of the cluster call it first.
template <int kStages> __device__ __forceinline__ ClusterStart start_cluster(uint8_t* raw) {
  __shared__ alignas(8) uint64_t barriers[2 * kStages + 1];
  const uint32_t tiles = shared_address(align_tiles(raw)), full = shared_address(barriers);
  const uint32_t empty = full + kStages * kBarrierBytes, order = empty + kStages * kBarrierBytes;
  const auto rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full + stage * kBarrierBytes, 1);
      barrier_init(empty + stage * kBarrierBytes, Tile::kConsumerWarps * Tile::kCluster);
    }
    barrier_init(order, kWarpgroupWarps * kWarpArrivals);
    fence_barrier_init();
  }
  cluster_sync();
  return {tiles, tiles + kStages * kStageBytes, full, empty, order, rank};
}

// One thread loads the CTA's rows of the left operand and half of the right one, which the copy
// engine writes to both CTAs. `piece_of(item)` is the piece of a turn.
template <int kStages, Major kRight, typename PieceOf>
__device__ __forceinline__ void produce(const CUtensorMap& left, const CUtensorMap& right,
                                        uint32_t tiles, uint32_t full, uint32_t empty, int rank,
                                        int items, int steps, PieceOf piece_of) {
  Ring<kStages> ring;
  for (int item = 0; item < items; ++item) {
    const Piece piece = piece_of(item);
    const int parts =
        (piece.narrow ? Tile::kNarrowColumns : Tile::kColumns) / kPanelColumns / Tile::kCluster;
    for (int k = 0; k < steps; ++k) {
      const uint32_t stage = tiles + ring.stage * kStageBytes,
                     done = full + ring.stage * kBarrierBytes;
      barrier_wait(empty + ring.stage * kBarrierBytes, ring.phase ^ 1u);
      barrier_expect(done, kLeftBytes + Tile::kCluster * parts * kPartBytes);
      tma_load(stage, &left, 0, k, piece.row + rank * Tile::kRows, 0, done);
      for (int i = rank * parts; i < (rank + 1) * parts; ++i) {
        const uint32_t to = stage + kLeftBytes + i * kPartBytes;
        const int column = piece.column + i * kPanelColumns;
        if constexpr (kRight == Major::kMN) { // the columns run along the right operand's rows
          tma_load_for_all(to, &right, 0, column / kPanelColumns, k * Tile::kDepth, 0, done);
        } else {
          tma_load_for_all(to, &right, 0, k, column, 0, done);
        }
      }
      ring.advance();
    }
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::cluster_product
