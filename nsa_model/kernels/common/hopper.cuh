#pragma once
// Hopper building blocks: mbarriers, bulk tensor loads, and swizzled tiles. Device code only. For
// targets other than sm_90a nothing is compiled, and launchers return an error there.
//
// All shared tiles here have rows of 64 bf16 (128 bytes) in the 128-byte swizzle: the 16-byte chunk
// c of row r is at chunk c ^ (r & 7). Tiles start at 1024-byte boundaries (eight rows).

#include "nsa_model/kernels/common/device.cuh"
#include "nsa_model/kernels/common/shape.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define NSA_HOPPER_CODE 1
#else
#define NSA_HOPPER_CODE 0
#endif

namespace nsa::kernels {

inline constexpr int kRowBytes = 128;
// A tile with more dimensions consists of several such tiles, one after another: panels.
template <int kDim> inline constexpr int kPanels = kDim / kPanelDims;

#ifndef NSA_ARRIVE_EVERY_LANE
#define NSA_ARRIVE_EVERY_LANE 0
#endif

#if NSA_HOPPER_CODE

// First 1024-byte boundary in dynamic shared memory. It uses pointer arithmetic only, so the
// compiler still knows the address space.
__device__ __forceinline__ uint8_t* align_tiles(uint8_t* raw) {
  return raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);
}

// Byte offset of the 16-byte chunk `chunk` of row `row` inside a swizzled tile.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// ---- mbarrier ----------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Initialises the barriers of a ring of stages, with the number of arrivals at each stage's two
// barriers.
template <int kStages>
__device__ __forceinline__ void init_ring(uint64_t (&full)[kStages], uint32_t fills,
                                          uint64_t (&empty)[kStages], uint32_t empties) {
  for (int i = 0; i < kStages; ++i) {
    barrier_init(shared_address(&full[i]), fills);
    barrier_init(shared_address(&empty[i]), empties);
  }
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One lane arrives for its warp, after the warp's accesses. compute-sanitizer's racecheck does not
// know the order that __syncwarp guarantees. So in a build for it every lane arrives
// (-DNSA_ARRIVE_EVERY_LANE=1).
#if NSA_ARRIVE_EVERY_LANE
inline constexpr int kWarpArrivals = 32;
__device__ __forceinline__ void warp_arrive(uint32_t barrier) {
  barrier_arrive(barrier);
}
__device__ __forceinline__ void warp_expect(uint32_t barrier, uint32_t bytes) {
  if (threadIdx.x % 32 == 0) {
    barrier_expect(barrier, bytes);
  } else {
    barrier_arrive(barrier);
  }
}
#else
inline constexpr int kWarpArrivals = 1;
__device__ __forceinline__ void warp_arrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
__device__ __forceinline__ void warp_expect(uint32_t barrier, uint32_t bytes) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_expect(barrier, bytes);
}
#endif
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "retry:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra retry;\n"
               "}\n" ::"r"(barrier),
               "r"(parity)
               : "memory");
}
// Makes initialised barriers visible to the copy engine; follow with __syncthreads().
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders this thread's ordinary shared-memory accesses before later ones of wgmma and bulk copies.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Barrier for `threads` threads of the CTA with a hardware barrier id (1 to 15). The hardware
// counts warps, and a diverged warp would count twice, so its lanes synchronise first.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A position in a ring of stages: index of the stage and the phase parity of its barriers.
template <int kStages> struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1u;
    }
  }
};

// True in one lane of the warp, always the same one. All lanes call it.
__device__ __forceinline__ bool elected() {
  int one;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n"
               : "=r"(one));
  return one != 0;
}

// ---- bulk copies -------------------------------------------------------------------------------
// Loads a box of a 4-dimensional tensor; coordinates innermost first. Completes on `barrier`.
__device__ __forceinline__ void tma_load(uint32_t destination, const void* tensor_map, int c0,
                                         int c1, int c2, int c3, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
               "l"(tensor_map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
// Copies `bytes` (a multiple of 16, both ends 16-byte aligned) of contiguous memory.
__device__ __forceinline__ void bulk_load(uint32_t destination, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
// Stores a box as tma_load loads it. fence_async_proxy() and a barrier order earlier writes to
// shared memory before it. The calling thread's stores form a group when it commits them.
__device__ __forceinline__ void tma_store(const void* tensor_map, int c0, int c1, int c2, int c3,
                                          uint32_t source) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
               "[%1];" ::"l"(tensor_map),
               "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Wait until the thread's stores have read shared memory, or until they are complete.
__device__ __forceinline__ void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <int kRegisters> __device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> __device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- stores -----------------------------------------------------------------------------------
// Stores four 8x8 matrices of bf16 from fragment layout, transposed: memory row i holds column i of
// the fragment. Lane 8m + i passes the address of row i of matrix m.
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, uint32_t a, uint32_t b,
                                                        uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
__device__ __forceinline__ void store_matrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                             uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
