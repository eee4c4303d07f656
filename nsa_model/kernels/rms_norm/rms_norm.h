#pragma once
// The sum of the residual stream and its RMSNorm in one pass, forward and backward. Arithmetic is
// FP32. The gain's gradient is summed in two stages of fixed order, so it is deterministic. Unless
// serves::norm() supports the width, a launch returns cudaErrorInvalidValue.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace nsa::kernels {

// normed = gain * sum / sqrt(mean(sum^2) + epsilon), where sum = x + addend rounded to bf16.
struct AddRmsNormParams {
  int rows = 0;
  int columns = 0;
  float epsilon = 0.0f;
  const __nv_bfloat16* x;      // [rows, columns]
  const __nv_bfloat16* addend; // as x; nullptr: sum is x
  const __nv_bfloat16* gain;   // [columns]
  __nv_bfloat16* sum;          // as x; without an addend it is not written and may be nullptr
  __nv_bfloat16* normed;       // as x
  float* inverse;              // [rows], 1 / sqrt(mean(sum^2) + epsilon)
};
cudaError_t launch_add_rms_norm(const AddRmsNormParams& params, cudaStream_t stream);

struct AddRmsNormBackwardParams {
  int rows = 0;
  int columns = 0;
  const __nv_bfloat16* d_normed; // [rows, columns]
  const __nv_bfloat16* d_sum;    // as d_normed, the other gradient of the sum; nullptr: none
  const __nv_bfloat16* sum;      // as d_normed
  const float* inverse;          // [rows]
  const __nv_bfloat16* gain;     // [columns]
  __nv_bfloat16* d_x;            // as d_normed; the addend's gradient is the same
  float* partial;                // rms_norm_partials(columns)
  __nv_bfloat16* d_gain;         // [columns]
};
std::size_t rms_norm_partials(int columns); // floats
cudaError_t launch_add_rms_norm_backward(const AddRmsNormBackwardParams& params,
                                         cudaStream_t stream);

} // namespace nsa::kernels
