#pragma once
// Causal attention over everything (kernels/causal) on the buffers of an attention problem: its
// queries, the window's keys, values, results and gradients. One thread.

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

class CausalCase {
public:
  // Only the window counts, and no gates. `options.shape` is one that the kernels serve.
  explicit CausalCase(const CaseOptions& options);
  void forward();
  void backward();
  void poison(); // everything that the kernels write

  AttentionCase buffers;
  DeviceBuffer<char> workspace;
};

} // namespace nsa::kernels::check
