// What libnsa_ops_cuda.so supports on a GPU, for code that chooses kernels before it has tensors.
//
// Thread-safe.
#pragma once

#include "nsa_model/reference/grid.h"

#include <ATen/core/TensorBody.h>

#include <string>

namespace nsa::ops {

// Why its attention does not serve these batches, heads, sequences and sizes on `device`; empty
// where it does.
std::string why_not_fused(at::Device device, int64_t batch, int64_t heads, int64_t groups,
                          int64_t head_dimension, int64_t sequence, const reference::Sizes& sizes);

// The same of fused_causal_attention() (fused.h).
std::string why_not_fused_causal(at::Device device, int64_t batch, int64_t heads, int64_t groups,
                                 int64_t head_dimension, int64_t sequence);

// 10 * major + minor of a GPU; 0 where the library is not loaded.
int compute_capability(at::Device device);

} // namespace nsa::ops
