// Selected attention of tokens from `first` on. Each of them has chosen n - 1 blocks besides its
// own. The own block is causal attention within blocks. The others are (query, block) pairs, sorted
// by block into ragged sequences (the scheme of MoBA's MixedAttention, arXiv 2502.13189).
//
// It keeps no state except the tensors it holds; one thread at a time.
#pragma once

#include "nsa_model/ops/branch_pass.h"
#include "nsa_model/ops/dense_attention.h"

#include <ATen/ATen.h>

#include <vector>

namespace nsa::ops {

class SelectedPairs {
public:
  // first is n * l', so it begins a block. select_blocks() must have made a.indices.
  SelectedPairs(const BranchArguments& a, int64_t first);

  // o: [b, later, H, D]. Returns {merged o, merged lse [b, later, H], random states of the parts}.
  std::vector<at::Tensor> forward(const at::Tensor& o) const;
  // grad_q covers the later tokens; grad_k and grad_v cover all. Adds to them.
  void backward(const std::vector<at::Tensor>& saved, const at::Tensor& grad_o,
                const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v) const;

private:
  at::Tensor own_blocks(const at::Tensor& x, double padding = 0) const;
  at::Tensor own_back(const at::Tensor& x) const;
  at::Tensor rows(const at::Tensor& x) const;
  at::Tensor of_pairs(const at::Tensor& rows) const;
  at::Tensor slot(const at::Tensor& of_pairs, int64_t slot) const;
  DenseProblem own_problem() const;
  DenseProblem pair_problem() const;

  const BranchArguments& a_;
  // tokens before, tokens from first on, and the latter padded to whole blocks
  int64_t first_, later_, padded_;
  int64_t batch_, groups_, per_group_, block_, blocks_, slots_;
  at::Tensor row_of_pair_; // [T]: row (b, t, g) of each pair, in block order
  at::Tensor place_;       // [rows, slots]: index of a row's pair
  Ragged ragged_;
};

} // namespace nsa::ops
