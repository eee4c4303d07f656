// Copies rows of the selected blocks of several layers (layer_sample.h). A CTA has a layer, and a
// thread 16 bytes at a time. No barrier.
#include "nsa_model/kernels/layer_sample/layer_sample.h"

namespace nsa::kernels {
namespace {

constexpr int kThreads = 1024;
constexpr int kVector = 4; // values of 16 bytes

__global__ void __launch_bounds__(kThreads)
    layer_sample_kernel(const __grid_constant__ LayerSampleParams params) {
  const auto* const blocks = reinterpret_cast<const int4*>(params.blocks[blockIdx.x]);
  auto* const sample = reinterpret_cast<int4*>(params.sample[blockIdx.x]);
  const int width = params.width / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < params.rows * width; i += kThreads)
    sample[i] = blocks[params.from[i / width] * width + i % width];
}

} // namespace

cudaError_t launch_layer_sample(const LayerSampleParams& params, cudaStream_t stream) {
  if (params.layers < 0 || params.layers > kSampledAtOnce || params.width % kVector != 0)
    return cudaErrorInvalidValue;
  if (params.layers == 0 || params.rows == 0) return cudaSuccess;
  layer_sample_kernel<<<static_cast<unsigned>(params.layers), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

} // namespace nsa::kernels
