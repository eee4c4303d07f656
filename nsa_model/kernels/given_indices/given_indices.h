#pragma once
// Given indices as the selected branch's kernels want them: what launch_selection writes.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct GivenIndicesParams {
  AttentionShape shape;
  const int32_t* given; // [batch, sequence, groups, 16], any numbers in any order, on 16 bytes
  int32_t* indices;     // as given, and may be `given`; see canonical_row
};
cudaError_t launch_given_indices(const GivenIndicesParams& params, cudaStream_t stream);

} // namespace nsa::kernels
