#pragma once
// The two products of the MLP next to SiLU, with SiLU in their epilogue. So its rows cross memory
// once less in each pass (docs/design/model.md, Architecture). Hopper only.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace nsa::kernels {

// before = x weight^T; after = silu(before), from the rounded `before`.
struct SiluProductParams {
  int rows = 0, columns = 0, inner = 0;
  const __nv_bfloat16* x;      // [rows, inner]
  const __nv_bfloat16* weight; // [columns, inner]
  __nv_bfloat16* before;       // [rows, columns]
  __nv_bfloat16* after;        // as before
};
cudaError_t launch_silu_product(const SiluProductParams& params, cudaStream_t stream);

// d_before = (d_out weight) * silu'(before). The gradient of `after` is not written, but it is
// rounded as if it were. With `after`, silu(before) is written as the forward wrote it, if the
// caller did not keep it.
struct SiluProductBackwardParams {
  int rows = 0, columns = 0, inner = 0;
  const __nv_bfloat16* d_out;     // [rows, inner]
  const __nv_bfloat16* weight;    // [inner, columns]
  const __nv_bfloat16* before;    // [rows, columns]
  __nv_bfloat16* d_before;        // as before
  __nv_bfloat16* after = nullptr; // as before; nullptr: not wanted
};
cudaError_t launch_silu_product_backward(const SiluProductBackwardParams& params,
                                         cudaStream_t stream);

} // namespace nsa::kernels
