// Calls libnsa_ops_cuda.so: the CUDA kernels behind nsa::fused_attention. library.cpp declares the
// schema, and that library registers the CUDA implementation with its own autograd.
//
// Thread-safe.
#pragma once

#include "nsa_model/ops/attention.h"

namespace nsa::ops {

// True once a library has registered nsa::fused_attention for CUDA.
bool fused_is_loaded();

// Calls nsa::fused_attention; throws c10::Error if it is not loaded or does not support these
// sizes.
at::Tensor fused_attention(const AttentionInputs& inputs, const Settings& settings);

// The same computation in two runs. The first returns its results without gradients, the output
// first. The second returns the output again, with gradients.
std::vector<at::Tensor> fused_attention_first(const AttentionInputs& inputs,
                                              const Settings& settings);
at::Tensor fused_attention_second(const AttentionInputs& inputs, const Settings& settings,
                                  at::TensorList first);

// Plain causal attention (the dense twin's) by the same library: q [B, S, H, D], k and v [B, S, G,
// D] in BF16; the result has the shape of q. Deterministic. Throws if why_not_fused_causal()
// (fused_support.h) gives a reason.
at::Tensor fused_causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Which kernels of the library support tensors like q [..., D] on q's GPU: "hopper" or "portable".
std::string fused_kernels(const at::Tensor& q);

} // namespace nsa::ops
