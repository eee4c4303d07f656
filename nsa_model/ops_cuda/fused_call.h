// ATen tensors on one side, the kernels' plain structs on the other
// (nsa_model/kernels/fused/fused.h): checks sizes and dtypes, allocates outputs and workspaces from
// LibTorch's allocator, launches on the current stream. No autograd here.
//
// Any thread; nothing waits for the device. Refusals throw c10::Error.
#pragma once

#include "nsa_model/ops/attention.h"

#include <ATen/ATen.h>

#include <array>
#include <string>
#include <vector>

namespace nsa::ops {

// Which kernels serve tensors like q [..., D] on its GPU: "hopper" or "portable". Not called
// fused_kernels: libnsa_ops.so exports that name, and this library's own call would go there.
std::string serving_kernels(const at::Tensor& q);

// Why heads like those of q [..., H, D] are not served on its GPU; empty where they are. `sizes`:
// compression block and stride, selection block, selected blocks, window.
std::string why_not_served(const at::Tensor& q, int64_t batch, int64_t groups, int64_t sequence,
                           at::IntArrayRef sizes);

int64_t compute_capability_of(const at::Tensor& like); // 10 * major + minor

struct FusedForward {
  at::Tensor out; // like q
  // What the backward needs besides the inputs, a row a token in the order of the documents' plan
  // (kernels/fused/documents.h). Undefined where a branch is off.
  std::array<at::Tensor, 3> branch_out, branch_lse;
  at::Tensor indices, lists;
  at::Tensor pooled_k, pooled_v; // where the compressed keys and values came un-pooled
};

// Inputs are contiguous BF16 on one CUDA device, gates contiguous FP32 [B, S, H, 3]. Compressed
// keys and values of as many tokens as the sequence has are pooled here (phi = mean), and their
// gradients are those of the tokens.
FusedForward fused_forward(const AttentionInputs& inputs, const Settings& settings);

struct FusedBackward {
  at::Tensor q, gates;
  std::array<at::Tensor, 3> k, v; // undefined where a branch is off
};
// Frees `forward.branch_out` as soon as nothing more is to read it, if nobody else holds it.
FusedBackward fused_backward(const AttentionInputs& inputs, const Settings& settings,
                             FusedForward forward, const at::Tensor& grad_out);

} // namespace nsa::ops
