// Computes the branches exactly by plain attention (dense_attention.h). With attention.kernels =
// "aten" it computes BF16 and FP16 on a GPU.
//
//   compressed  Queries are regrouped by t mod d. In each class the staircase of visible
//               compressed tokens is a plain causal mask.
//   selected    The first n * l' tokens see every causal block: causal attention. For later
//               tokens the own block is causal attention within blocks, and every other slot
//               is a (query, block) pair. Pairs sorted by block are ragged sequences. The parts
//               are merged by their log-sum-exp. Gradients are computed part by part with the
//               merged log-sum-exp.
//   sliding     causal attention with a window
//
// The host is never synchronised. No state; one thread at a time.
#pragma once

#include "nsa_model/ops/branch_pass.h"

#include <ATen/ATen.h>

#include <vector>

namespace nsa::ops {

// Whether regrouping supports these tensors on their device. `selected_here`: select_blocks() made
// the indices, not a caller.
bool regrouped_serves(const BranchArguments& arguments, bool selected_here);

// Writes o [b, L, H, D]; returns the tensors that backward needs. Offsets must be zero. indices may
// be undefined if L <= n * l'.
std::vector<at::Tensor> regrouped_forward(const BranchArguments& arguments, const at::Tensor& o);

// Adds to grad_q, grad_k, grad_v (in the compute type).
void regrouped_backward(const BranchArguments& arguments, const std::vector<at::Tensor>& saved,
                        const at::Tensor& grad_o, const at::Tensor& grad_q,
                        const at::Tensor& grad_k, const at::Tensor& grad_v);

} // namespace nsa::ops
