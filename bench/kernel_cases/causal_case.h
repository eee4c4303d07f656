#pragma once
// Causal attention over all tokens (kernels/causal) in the buffers of an attention problem. It uses
// the queries, and the keys, values, results and gradients of the window. One thread.

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

class CausalCase {
public:
  // Only the window is on, and gates are not used. The kernels must support `options.shape`.
  explicit CausalCase(const CaseOptions& options);
  void forward();
  void backward();
  void poison(); // poisons everything that the kernels write

  AttentionCase buffers;
  DeviceBuffer<char> workspace;
};

} // namespace nsa::kernels::check
