// Plain attention as a building block: ATen's FlashAttention-2 on a GPU, dense products elsewhere.
// So code that is built from it can be tested without a GPU. In both, the backward pass accepts an
// output and a log-sum-exp that cover more keys than the given ones. So parts can be merged, and
// their gradients can be computed part by part.
//
// It has no state; one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace nsa::ops {

// Ragged sequences: rows [q_starts[i], q_starts[i + 1]) of q attend to rows [k_starts[i],
// k_starts[i + 1]) of k. Both are int32 on the device; the host knows the longest of each.
struct Ragged {
  at::Tensor q_starts, k_starts;
  int64_t longest_q, longest_k;
};

// q [N, Sq, H, D], k, v [N, Sk, G, D]; ragged: q [T, H, D], k, v [K, G, D].
struct DenseProblem {
  at::Tensor q, k, v;
  double scale;
  bool causal = false; // requires Sq == Sk
  int64_t window = 0;  // causal only: visible keys, including the token itself; 0: all
  std::optional<Ragged> ragged = {};
};

// lse: FP32 (FP64 for FP64) [N, H, Sq], ragged [H, T]. Rows of q after the last sequence are not
// written.
struct DenseResult {
  at::Tensor o, lse, random_state, unused; // ATen's backward needs the last two
};
DenseResult dense_forward(const DenseProblem& problem);

struct DenseGradients {
  at::Tensor q, k, v;
};
DenseGradients dense_backward(const DenseProblem& problem, const DenseResult& result,
                              const at::Tensor& grad_o);

} // namespace nsa::ops
