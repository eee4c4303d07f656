#pragma once
// launch_merge for packed partial results, with six heads of 64 dimensions. `round` must be set.

#include "nsa_model/kernels/combine/combine.h"

namespace nsa::kernels {

cudaError_t launch_packed_merge(const MergeParams& params, cudaStream_t stream);

} // namespace nsa::kernels
