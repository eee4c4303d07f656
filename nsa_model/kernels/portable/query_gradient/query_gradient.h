#pragma once
// Parameters of dQ, query-major (docs/design/kernels.md). D = shape.head_dim, 64 or 128; 1 to 16
// heads. Deterministic, no atomics on results.

#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable {

// One branch. dQ of all branches is summed in registers.
struct QueryGradientBranch {
  Keys keys;
  const float* statistics = nullptr; // output of launch_backward_prepare
};
struct QueryGradientParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr;
  // As q; gradient of the gated sum (`statistics` include the gates)
  const __nv_bfloat16* d_out = nullptr;
  const int32_t* indices = nullptr;
  int branches = 0;
  QueryGradientBranch branch[3];
  __nv_bfloat16* d_q = nullptr; // as q
};
cudaError_t launch_query_gradient(const QueryGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels::portable
