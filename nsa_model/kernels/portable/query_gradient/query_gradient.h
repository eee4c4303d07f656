#pragma once
// Parameters of dQ, query-major (docs/design/kernels.md). D = shape.head_dim, 64 or 128; every
// count of heads from 1 to 16. Deterministic, no atomics on results.

#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable {

// dQ of all branches, summed in registers.
struct QueryGradientBranch {
  Keys keys;
  const float* statistics = nullptr; // of launch_backward_prepare
};
struct QueryGradientParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr;
  const __nv_bfloat16* d_out = nullptr; // as q; of the gated sum (gates act through `statistics`)
  const int32_t* indices = nullptr;
  int branches = 0;
  QueryGradientBranch branch[3];
  __nv_bfloat16* d_q = nullptr; // as q
};
cudaError_t launch_query_gradient(const QueryGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels::portable
