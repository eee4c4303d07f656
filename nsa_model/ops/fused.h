// The door to libnsa_ops_cuda.so: hand-written kernels behind nsa::fused_attention, whose schema is
// declared in library.cpp and whose CUDA kernel (with its own autograd) that library registers.
//
// Thread-safe.
#pragma once

#include "nsa_model/ops/attention.h"

namespace nsa::ops {

// True once a library has registered nsa::fused_attention for CUDA.
bool fused_is_loaded();

// Calls it; throws c10::Error when it is not loaded or does not serve these sizes.
at::Tensor fused_attention(const AttentionInputs& inputs, const Settings& settings);

// Which of its kernels serve tensors like q [..., D] on q's GPU: "hopper" or "portable".
std::string fused_kernels(const at::Tensor& q);

} // namespace nsa::ops
