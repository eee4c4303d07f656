#pragma once
// The factor of a gradient that is already computed. Deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace nsa::kernels {

// x *= factor, in place. With a factor of 1, x is neither read nor written.
struct ScaleGradientParams {
  int64_t count = 0;   // elements, a multiple of 8
  __nv_bfloat16* x;    // aligned to 16 bytes
  const float* factor; // one value
};
cudaError_t launch_scale_gradient(const ScaleGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels
