#pragma once
// Parameters of attention's forward, query-major (docs/design/kernels.md). D = shape.head_dim, 64
// or 128; every count of heads from 1 to 16. Deterministic, no atomics on results.

#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable {

struct AttendBranch {
  Keys keys;
  __nv_bfloat16* out = nullptr; // [batch, sequence, groups * heads, D]; 0 where no key is seen
  float* lse = nullptr;         // [batch, sequence, groups * heads], natural; -inf there
};
struct AttendParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr; // [batch, sequence, groups * heads, D]
  const int32_t* indices = nullptr; // [batch, sequence, groups, 16], ascending, -1 at the end
  int branches = 0;                 // how many of the following
  AttendBranch branch[3];
};
cudaError_t launch_attend(const AttendParams& params, cudaStream_t stream);

} // namespace nsa::kernels::portable
