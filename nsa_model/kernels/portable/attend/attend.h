#pragma once
// Parameters of attention's forward, query-major (docs/design/kernels.md). D = shape.head_dim, 64
// or 128; 1 to 16 heads. Deterministic, no atomics on results.

#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable {

struct AttendBranch {
  Keys keys;
  __nv_bfloat16* out = nullptr; // [batch, sequence, groups * heads, D]; 0 if no key is seen
  float* lse = nullptr; // [batch, sequence, groups * heads], natural; -inf if no key is seen
};
struct AttendParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr; // [batch, sequence, groups * heads, D]
  const int32_t* indices = nullptr; // [batch, sequence, groups, 16], ascending, -1 at the end
  int branches = 0;                 // number of valid entries in `branch`
  AttendBranch branch[3];
};
cudaError_t launch_attend(const AttendParams& params, cudaStream_t stream);

} // namespace nsa::kernels::portable
