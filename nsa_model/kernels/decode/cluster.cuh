#pragma once
// Communication of the CTAs of a cluster: writes to each other's shared memory, and signals that
// these have arrived. Before Hopper a cluster is one CTA. Tests have their own version for the
// host.

#include <cstdint>

namespace nsa::kernels::decode {

// A signal is used once. It counts arrivals of the CTA's own warps and bytes that CTAs of the
// cluster send. A thread that has waited for it sees the data that was sent, and the data that the
// CTA's warps wrote before they arrived.
struct Signal {
  uint64_t state;
};

#if defined(__CUDACC__)

// One lane arrives for its warp. compute-sanitizer's racecheck does not know the order that
// __syncwarp guarantees. So in a build for it every lane arrives.
#ifndef NSA_ARRIVE_EVERY_LANE
#define NSA_ARRIVE_EVERY_LANE 0
#endif
inline constexpr int kArrivalsOfWarp = NSA_ARRIVE_EVERY_LANE ? 32 : 1;

__device__ __forceinline__ uint32_t shared_word(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// One thread calls it before begin_cluster(), or meet_cta() if the CTA is alone.
__device__ __forceinline__ void expect(Signal& signal, int warps, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_word(&signal)),
               "r"(warps * kArrivalsOfWarp + 1)
               : "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_word(&signal)),
               "r"(bytes)
               : "memory");
#else
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_word(&signal)),
               "r"(warps * kArrivalsOfWarp)
               : "memory");
#endif
}
// All threads call both functions. Between the two calls a CTA accesses only its own shared memory.
__device__ __forceinline__ void begin_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
// Writes to the copy of `mine` in CTA `rank`, and counts the bytes in that CTA's `signal`. Before
// Hopper this CTA is the only one, and the signal counts only its warps' arrivals.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t of_rank(const void* mine, int rank) {
  uint32_t theirs;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(shared_word(mine)), "r"(rank));
  return theirs;
}
__device__ __forceinline__ void send(int* mine, int value, int rank, Signal& signal) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   of_rank(mine, rank)),
               "r"(value), "r"(of_rank(&signal, rank))
               : "memory");
}
__device__ __forceinline__ void send(uint2* mine, const uint2& value, int rank, Signal& signal) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          of_rank(mine, rank)),
      "r"(value.x), "r"(value.y), "r"(of_rank(&signal, rank))
      : "memory");
}
__device__ __forceinline__ void send(float4* mine, const float4& value, int rank, Signal& signal) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, "
               "%4}, [%5];" ::"r"(of_rank(mine, rank)),
               "r"(__float_as_int(value.x)), "r"(__float_as_int(value.y)),
               "r"(__float_as_int(value.z)), "r"(__float_as_int(value.w)),
               "r"(of_rank(&signal, rank))
               : "memory");
}
#else
template <typename T> __device__ __forceinline__ void send(T* mine, const T& value, int, Signal&) {
  *mine = value;
}
#endif
// A warp of this CTA calls it after it has written and sent its data.
__device__ __forceinline__ void arrive(Signal& signal) {
  __syncwarp();
  if (threadIdx.x % 32 >= kArrivalsOfWarp) return;
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_word(&signal)) : "memory");
#else
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(
                   shared_word(&signal))
               : "memory");
#endif
}
__device__ __forceinline__ void await(const Signal& signal) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred done;\nretry:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
               "@!done bra retry;\n}\n" ::"r"(shared_word(&signal))
               : "memory");
#else
  uint32_t done = 0;
  while (done == 0)
    asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared.b64 done, [%1], 0;\n"
                 "selp.u32 %0, 1, 0, done;\n}\n"
                 : "=r"(done)
                 : "r"(shared_word(&signal))
                 : "memory");
#endif
  __syncwarp();
}
// Whether a wait would end at once. Then the warp sees what a wait would show. All lanes call it.
__device__ __forceinline__ bool has_come(const Signal& signal) {
  uint32_t done;
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], 0;\n"
#else
  asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared.b64 done, [%1], 0;\n"
#endif
               "selp.u32 %0, 1, 0, done;\n}\n"
               : "=r"(done)
               : "r"(shared_word(&signal))
               : "memory");
  return __all_sync(~0u, done != 0) != 0;
}
// Prefetches `bytes` from `source` into L2; both are multiples of 16. One lane calls it.
__device__ __forceinline__ void prefetch(const void* source, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
#endif
}
// Synchronises the first `warps` warps of the CTA. The hardware counts warps, so the lanes
// synchronise first.
__device__ __forceinline__ void meet_warps(int warps) {
  __syncwarp();
  asm volatile("bar.sync 1, %0;" ::"r"(32 * warps) : "memory");
}

#endif

} // namespace nsa::kernels::decode
