// Multiplies a gradient by a factor that the device knows (scale_gradient.h). A thread owns vectors
// of 16 bytes. No barrier.
#include "nsa_model/kernels/scale_gradient/scale_gradient.h"

#include "nsa_model/kernels/common/vector.cuh"

#include <algorithm>

namespace nsa::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostCtas = 1056; // eight for each of an H200's 132 multiprocessors

__global__ void __launch_bounds__(kThreads) scale_gradient_kernel(ScaleGradientParams params) {
  const float factor = *params.factor;
  if (factor == 1.0f) return;
  const int64_t vectors = params.count / kVectorValues;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors;
       i += int64_t{gridDim.x} * kThreads) {
    __nv_bfloat16* const at = params.x + i * kVectorValues;
    Eight scaled = unpack(load_vector(at));
#pragma unroll
    for (float& value : scaled.values)
      value *= factor;
    store(at, scaled);
  }
}

} // namespace

cudaError_t launch_scale_gradient(const ScaleGradientParams& params, cudaStream_t stream) {
  if (params.count < 0 || params.count % kVectorValues != 0) return cudaErrorInvalidValue;
  if (params.count == 0) return cudaSuccess;
  const int64_t vectors = params.count / kVectorValues;
  const int64_t ctas = std::min((vectors + kThreads - 1) / kThreads, kMostCtas);
  scale_gradient_kernel<<<static_cast<unsigned>(ctas), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

} // namespace nsa::kernels
