#pragma once
// Communication of the CTAs of a cluster. Device code only.

#include "nsa_model/kernels/cluster_product/config.h"

namespace nsa::kernels::cluster_product {

#if NSA_HOPPER_CODE

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// Arrives at the barrier at the same address in CTA `rank` of the cluster.
__device__ __forceinline__ void remote_arrive(uint32_t barrier, uint32_t rank) {
  asm volatile("{\n.reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
               "r"(rank)
               : "memory");
}
// tma_load() into all CTAs of the cluster, with the same destination address and barrier address in
// each.
__device__ __forceinline__ void tma_load_for_all(uint32_t destination, const void* tensor_map,
                                                 int c0, int c1, int c2, int c3, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
               "l"(tensor_map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
               "h"(static_cast<uint16_t>((1u << Tile::kCluster) - 1))
               : "memory");
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::cluster_product
