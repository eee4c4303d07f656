#pragma once
// Plain causal attention of the dense twin: every token sees itself and all tokens before it. It
// runs the interval kernels (tile_forward, tile_backward, range_backward) with a window larger than
// any sequence. serves::why_not_causal() (nsa_model/choice) says which shapes are supported.
//
// Nothing is allocated, and nothing waits for the device. Results are deterministic; there are no
// atomics. common/shape.h describes the layouts. Every pointer is aligned to 16 bytes, the
// workspace to 256.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct CausalForwardParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q; // [batch, sequence, groups * heads, 64]
  const __nv_bfloat16* k; // [batch, sequence, groups, 64]
  const __nv_bfloat16* v; // as k
  __nv_bfloat16* out;     // as q
  float* lse;             // [batch, sequence, groups * heads], natural logarithm
};
cudaError_t launch_causal_forward(const CausalForwardParams& params, cudaStream_t stream);

struct CausalBackwardParams {
  CausalForwardParams forward; // the forward's parameters and results
  const __nv_bfloat16* d_out;  // as q
  __nv_bfloat16* d_q;          // as q
  __nv_bfloat16* d_k;          // as k
  __nv_bfloat16* d_v;          // as k
};
// Bytes for the current device; linear in the tokens.
std::size_t causal_backward_workspace_bytes(const AttentionShape& shape);
cudaError_t launch_causal_backward(const CausalBackwardParams& params, void* workspace,
                                   cudaStream_t stream);

} // namespace nsa::kernels
