// phi as average pooling (Eq. 7), for keys and values [batch, sequence, groups, D]:
//   k_cmp[i] = mean of k[16 i .. 16 i + 31];   d_k[t] = sum of d_k_cmp[i] / 32 over i with t
//
// Memory-bound, no barrier. A thread owns 8 neighbouring dimensions (16 bytes) of one token. The
// grid's second dimension chooses keys or values. The two compressed tokens that cover an input row
// both read it; the second read hits L1 or L2.
#include "nsa_model/kernels/pooling/pooling.h"

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/pooling/config.h"

namespace nsa::kernels {
namespace {

using pooling::Tile;

// Index of a thread's 16 bytes in a tensor [batch, tokens, groups, D].
struct Element {
  int64_t index; // index of the vector
  int64_t inner; // index within a token: group and vector
  int64_t token;
  int64_t batch;
  bool valid;
};
template <int kDim>
__device__ __forceinline__ Element element(const AttentionShape& shape, int tokens) {
  Element e;
  const int width = shape.groups * (kDim / kVectorValues);
  e.index = static_cast<int64_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  e.inner = e.index % width;
  e.token = e.index / width % tokens;
  e.batch = e.index / width / tokens;
  e.valid = e.batch < shape.batch;
  return e;
}

template <int kDim>
__global__ void __launch_bounds__(Tile::kThreads)
    pooling_kernel(PoolingParams params, int compressed) {
  wait_for_earlier_kernels();
  const Element e = element<kDim>(params.shape, compressed);
  if (!e.valid) return;
  const int64_t width = params.shape.groups * kDim;
  const int64_t source = (e.batch * params.shape.sequence + e.token * kCompressStride) * width +
                         e.inner * kVectorValues;
  const __nv_bfloat16* in = (blockIdx.y == 0 ? params.k : params.v) + source;
  constexpr int kLoads = Tile::kLoads;
  Eight sum = {};
#pragma unroll kLoads
  for (int i = 0; i < kCompressLength; ++i)
    accumulate(sum, in + i * width, 1.0f / kCompressLength);
  store((blockIdx.y == 0 ? params.k_cmp : params.v_cmp) + e.index * kVectorValues, sum);
}

template <int kDim>
__global__ void __launch_bounds__(Tile::kThreads)
    pooling_backward_kernel(PoolingBackwardParams params, int compressed) {
  wait_for_earlier_kernels();
  const Element e = element<kDim>(params.shape, params.shape.sequence);
  if (!e.valid) return;
  const int64_t width = params.shape.groups * kDim;
  const float* in = blockIdx.y == 0 ? params.d_k_cmp : params.d_v_cmp;
  const int last = static_cast<int>(e.token) / kCompressStride;
  Eight sum = {};
#pragma unroll
  for (int i = 1 - kCompressLength / kCompressStride; i <= 0; ++i) {
    const int block = last + i;
    if (block < 0 || block >= compressed) continue;
    accumulate(sum, in + (e.batch * compressed + block) * width + e.inner * kVectorValues,
               1.0f / kCompressLength);
  }
  store((blockIdx.y == 0 ? params.d_k : params.d_v) + e.index * kVectorValues, sum);
}

dim3 grid_for(const AttentionShape& shape, int tokens) {
  const int64_t threads =
      int64_t{shape.batch} * tokens * shape.groups * (shape.head_dim / kVectorValues);
  return dim3(static_cast<unsigned>((threads + Tile::kThreads - 1) / Tile::kThreads), 2);
}

} // namespace

cudaError_t launch_pooling(const PoolingParams& params, cudaStream_t stream) {
  const int compressed = compressed_count(params.shape.sequence);
  if (compressed == 0) return cudaSuccess;
  return with_head_dim(params.shape, [&](auto dim) {
    return launch_kernel(pooling_kernel<dim()>, grid_for(params.shape, compressed), Tile::kThreads,
                         0, stream, params, compressed);
  });
}

cudaError_t launch_pooling_backward(const PoolingBackwardParams& params, cudaStream_t stream) {
  return with_head_dim(params.shape, [&](auto dim) {
    return launch_kernel(pooling_backward_kernel<dim()>,
                         grid_for(params.shape, params.shape.sequence), Tile::kThreads, 0, stream,
                         params, compressed_count(params.shape.sequence));
  });
}

} // namespace nsa::kernels
