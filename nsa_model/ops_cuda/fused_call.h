// Converts ATen tensors to the kernels' plain structs (nsa_model/kernels/fused/fused.h). It checks
// sizes and dtypes, allocates outputs and workspaces from LibTorch's allocator, and launches on the
// current stream. No autograd here.
//
// Any thread; nothing waits for the device. Unsupported inputs throw c10::Error.
#pragma once

#include "nsa_model/ops/attention.h"

#include <ATen/ATen.h>

#include <array>
#include <string>
#include <vector>

namespace nsa::ops {

// Which kernels support tensors like q [..., D] on its GPU: "hopper" or "portable". The name is not
// fused_kernels, because libnsa_ops.so exports that symbol and this library's calls would go there.
std::string serving_kernels(const at::Tensor& q);

// Why heads like those of q [..., H, D] are not supported on its GPU; empty if they are. `sizes`:
// compression block and stride, selection block, selected blocks, window.
std::string why_not_served(const at::Tensor& q, int64_t batch, int64_t groups, int64_t sequence,
                           at::IntArrayRef sizes);

int64_t compute_capability_of(const at::Tensor& like); // 10 * major + minor

struct FusedForward {
  at::Tensor out; // like q
  // Further tensors that the backward needs besides the inputs. They have one row for each token,
  // in the order of the documents' plan (kernels/fused/documents.h). Undefined if a branch is off.
  std::array<at::Tensor, 3> branch_out, branch_lse;
  at::Tensor indices, lists;
  at::Tensor pooled_k, pooled_v; // defined if the compressed keys and values arrived un-pooled
};

// Inputs are contiguous BF16 on one CUDA device; gates are contiguous FP32 [B, S, H, 3]. Compressed
// keys and values with as many tokens as the sequence are pooled here (phi = mean). Their gradients
// then have one row for each token.
FusedForward fused_forward(const AttentionInputs& inputs, const Settings& settings);

struct FusedBackward {
  at::Tensor q, gates;
  std::array<at::Tensor, 3> k, v; // undefined if a branch is off
};
// Frees `forward.branch_out` as soon as nothing reads it any more, if nobody else holds it.
FusedBackward fused_backward(const AttentionInputs& inputs, const Settings& settings,
                             FusedForward forward, const at::Tensor& grad_out);

} // namespace nsa::ops
