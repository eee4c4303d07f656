// Softmax attention of one query over a list of keys in float64, and its gradient. All branches of
// the oracle use this inner loop.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace nsa::reference {

struct Row {
  const double* q;
  int64_t head_dimension;
  double scale;
  std::vector<const double*> k, v; // the keys and values that the query sees
};

// Returns p; writes o and the log-sum-exp of the scaled scores. Without keys o = 0 and lse = -inf.
std::vector<double> attend_row(const Row& row, double* o, double& lse);

// Adds the gradients of grad_o . o to grad_q, grad_k[i] and grad_v[i].
void attend_row_backward(const Row& row, const double* grad_o, double* grad_q,
                         const std::vector<double*>& grad_k, const std::vector<double*>& grad_v);

} // namespace nsa::reference
