// The branches out of plain attention (dense_attention.h), exactly: how attention.kernels = "aten"
// computes BF16 and FP16 on a GPU.
//
//   compressed  queries regrouped by t mod d: in each class the staircase of visible compressed
//               tokens is a plain causal mask
//   selected    the first n * l' tokens see every causal block: causal attention. For later ones
//   the
//               own block is causal attention within blocks, and every other slot is a (query,
//               block) pair; pairs sorted by block are ragged sequences. The parts are merged by
//               their log-sum-exp, and gradients are taken part by part with the merged one.
//   sliding     causal attention with a window
//
// No host synchronisation. Stateless; one thread at a time.
#pragma once

#include "nsa_model/ops/branch_pass.h"

#include <ATen/ATen.h>

#include <vector>

namespace nsa::ops {

// Whether these tensors can go this way on their device. `selected_here`: the indices are those of
// select_blocks (every slot as it gives them), not a caller's.
bool regrouped_serves(const BranchArguments& arguments, bool selected_here);

// Writes o [b, L, H, D]; returns what backward needs. Offsets must be zero. indices may be
// undefined when L <= n * l'.
std::vector<at::Tensor> regrouped_forward(const BranchArguments& arguments, const at::Tensor& o);

// Adds to grad_q, grad_k, grad_v (compute type).
void regrouped_backward(const BranchArguments& arguments, const std::vector<at::Tensor>& saved,
                        const at::Tensor& grad_o, const at::Tensor& grad_q,
                        const at::Tensor& grad_k, const at::Tensor& grad_v);

} // namespace nsa::ops
