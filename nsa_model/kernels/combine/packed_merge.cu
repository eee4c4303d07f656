// The sum of combine.cu for one round of lists: o = sum_i exp(lse_i - lse) o_i over a token's
// pieces in the round. They are read in the packed order in which the list kernels wrote them. Each
// warp owns some rows, and its lanes exchange values by shuffles; there is no barrier.
// packed_merge.cuh has the steps as functions of the warp, which tests run on a CPU.
#include "nsa_model/kernels/combine/packed_merge.h"

#include "nsa_model/kernels/combine/packed_merge.cuh"
#include "nsa_model/kernels/common/launch.h"

namespace nsa::kernels {
namespace {

struct Warp {
  template <typename T> static __device__ __forceinline__ T exchange(T value, int mask) {
    return __shfl_xor_sync(~0u, value, mask);
  }
  template <typename T> static __device__ __forceinline__ T of_four(T value, int lane) {
    return __shfl_sync(~0u, value, lane, 4);
  }
  static __device__ __forceinline__ bool any(bool value) { return __any_sync(~0u, value) != 0; }
  static __device__ __forceinline__ bool all(bool value) { return __all_sync(~0u, value) != 0; }
};

template <bool kJoined>
__global__ void __launch_bounds__(packed::kMergeThreads) packed_merge_kernel(MergeParams params) {
  wait_for_earlier_kernels();
  // The merge begins with the rows that were written last, because they are still in the L2 cache
  // (50 MB).
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  packed::merge_pieces<Warp, kJoined>(params, static_cast<int>(block),
                                      static_cast<int>(threadIdx.x));
}

unsigned grid_for(const ListRound& round) {
  const int64_t rows = visited_rows(round, 0);
  return static_cast<unsigned>((rows + packed::kMergeRows - 1) / packed::kMergeRows);
}

} // namespace

cudaError_t launch_packed_merge(const MergeParams& params, cudaStream_t stream) {
  if (params.shape.heads != kHeadsPerGroup || params.shape.head_dim != kHeadDim)
    return cudaErrorInvalidValue;
  const auto kernel = params.joined ? packed_merge_kernel<true> : packed_merge_kernel<false>;
  return launch_kernel(kernel, grid_for(params.round), packed::kMergeThreads, 0, stream, params);
}

} // namespace nsa::kernels
