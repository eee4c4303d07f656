#pragma once
// Converts given indices to the form that the selected branch's kernels need, which is also the
// output of launch_selection.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct GivenIndicesParams {
  AttentionShape shape;
  // [batch, sequence, groups, 16], any numbers in any order, aligned to 16 bytes.
  const int32_t* given;
  int32_t* indices; // shape of `given`, and may be the same pointer; see canonical_row
};
cudaError_t launch_given_indices(const GivenIndicesParams& params, cudaStream_t stream);

} // namespace nsa::kernels
