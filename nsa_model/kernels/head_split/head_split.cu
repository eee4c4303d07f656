// Splits the joined projections into q and sets of keys and values, with RoPE and each group's mean
// query, and joins their gradients (head_split.h). For a pair (x, y) at distance head_dim / 2:
//   forward  (x cos - y sin, y cos + x sin);   backward  (x cos + y sin, y cos - x sin)
//
// Memory-bound, no barrier. head_split.cuh has the work of a thread.
#include "nsa_model/kernels/head_split/head_split.cuh"

#include "nsa_model/kernels/head_split/config.h"

namespace nsa::kernels {
namespace {

using head_split::Tile;

__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    head_split_kernel(const __grid_constant__ HeadSplitParams params) {
  const uint32_t thread = blockIdx.x * Tile::kThreads + threadIdx.x;
  if (thread < head_split_threads(params.layout)) split_chunk(params, thread);
}
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    head_split_backward_kernel(const __grid_constant__ HeadSplitBackwardParams params) {
  const uint32_t thread = blockIdx.x * Tile::kThreads + threadIdx.x;
  if (thread < head_split_threads(params.layout)) join_chunk(params, thread);
}

bool serves(const HeadLayout& layout) {
  return layout.groups > 0 && layout.heads % layout.groups == 0 && layout.head_dim % 16 == 0 &&
         layout.sets <= kMaxHeadSets && layout.rotated <= layout.sets &&
         head_split_threads(layout) < UINT32_MAX - Tile::kThreads;
}
unsigned blocks_for(const HeadLayout& layout) {
  return static_cast<unsigned>((head_split_threads(layout) + Tile::kThreads - 1) / Tile::kThreads);
}

} // namespace

cudaError_t launch_head_split(const HeadSplitParams& params, cudaStream_t stream) {
  if (!serves(params.layout)) return cudaErrorInvalidValue;
  if (params.layout.tokens == 0) return cudaSuccess;
  head_split_kernel<<<blocks_for(params.layout), Tile::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_head_split_backward(const HeadSplitBackwardParams& params, cudaStream_t stream) {
  if (!serves(params.layout)) return cudaErrorInvalidValue;
  if (params.layout.tokens == 0) return cudaSuccess;
  head_split_backward_kernel<<<blocks_for(params.layout), Tile::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

} // namespace nsa::kernels
