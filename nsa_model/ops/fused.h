// Calls libnsa_ops_cuda.so: the hand-written kernels behind nsa::fused_attention. library.cpp
// declares the schema; that library registers the CUDA kernel with its own autograd.
//
// Thread-safe.
#pragma once

#include "nsa_model/ops/attention.h"

namespace nsa::ops {

// True once a library has registered nsa::fused_attention for CUDA.
bool fused_is_loaded();

// Calls it; throws c10::Error when it is not loaded or does not serve these sizes.
at::Tensor fused_attention(const AttentionInputs& inputs, const Settings& settings);

// The same in two runs: the first one's results, without gradients, the output in front; and from
// them the output again, with gradients.
std::vector<at::Tensor> fused_attention_first(const AttentionInputs& inputs,
                                              const Settings& settings);
at::Tensor fused_attention_second(const AttentionInputs& inputs, const Settings& settings,
                                  at::TensorList first);

// Plain causal attention (the dense twin's) by the same library: q [B, S, H, D], k and v
// [B, S, G, D] in BF16; the result is like q. Deterministic. Throws where
// why_not_fused_causal() (fused_support.h) says why.
at::Tensor fused_causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Which of its kernels serve tensors like q [..., D] on q's GPU: "hopper" or "portable".
std::string fused_kernels(const at::Tensor& q);

} // namespace nsa::ops
