#pragma once
// launch_merge where partial results are packed, of six heads of 64 dimensions. `round` is set.

#include "nsa_model/kernels/combine/combine.h"

namespace nsa::kernels {

cudaError_t launch_packed_merge(const MergeParams& params, cudaStream_t stream);

} // namespace nsa::kernels
