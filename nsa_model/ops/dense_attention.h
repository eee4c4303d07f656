// Plain attention as a building block: FlashAttention-2 of ATen on a GPU, dense products elsewhere
// (which is how what is built from it can be tested without a GPU). Both take an output and a
// log-sum-exp that cover more keys than the ones at hand, so that pieces can be merged and their
// gradients taken piece by piece.
//
// Stateless; one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace nsa::ops {

// Ragged sequences: rows [q_starts[i], q_starts[i + 1]) of q attend to rows [k_starts[i],
// k_starts[i + 1]) of k. int32, on the device; the longest of each are known on the host.
struct Ragged {
  at::Tensor q_starts, k_starts;
  int64_t longest_q, longest_k;
};

// q [N, Sq, H, D], k, v [N, Sk, G, D]; ragged: q [T, H, D], k, v [K, G, D].
struct DenseProblem {
  at::Tensor q, k, v;
  double scale;
  bool causal = false; // Sq == Sk
  int64_t window = 0;  // causal only: keys seen, the token itself included; 0: all
  std::optional<Ragged> ragged = {};
};

// lse: FP32 (FP64 for FP64) [N, H, Sq], ragged [H, T]. Rows of q behind the last sequence are not
// written.
struct DenseResult {
  at::Tensor o, lse, random_state, unused; // the last two are what ATen's backward asks for
};
DenseResult dense_forward(const DenseProblem& problem);

struct DenseGradients {
  at::Tensor q, k, v;
};
DenseGradients dense_backward(const DenseProblem& problem, const DenseResult& result,
                              const at::Tensor& grad_o);

} // namespace nsa::ops
