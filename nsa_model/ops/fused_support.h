// What libnsa_ops_cuda.so supports on a GPU, for code that chooses kernels before it has tensors.
//
// Thread-safe.
#pragma once

#include "nsa_model/reference/grid.h"

#include <ATen/core/TensorBody.h>

#include <string>

namespace nsa::ops {

// Why the library's attention does not support these batches, heads, sequences and sizes on
// `device`; empty if it does.
std::string why_not_fused(at::Device device, int64_t batch, int64_t heads, int64_t groups,
                          int64_t head_dimension, int64_t sequence, const reference::Sizes& sizes);

// The same question for fused_causal_attention() (fused.h).
std::string why_not_fused_causal(at::Device device, int64_t batch, int64_t heads, int64_t groups,
                                 int64_t head_dimension, int64_t sequence);

// 10 * major + minor of a GPU; 0 if the library is not loaded.
int compute_capability(at::Device device);

} // namespace nsa::ops
