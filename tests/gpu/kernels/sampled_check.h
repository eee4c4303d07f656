#pragma once
// Compares samples of rows and keys of one long sequence with float64. All of them would take
// minutes. One thread.

#include <string>

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// Compares outputs, log-sums, dQ, the gates' gradients and selected blocks of some tokens. Also
// compares dK and dV of some keys, among them first keys, which every token sees, and last ones.
bool run_sampled_case(const std::string& name, const CaseOptions& options);

} // namespace nsa::kernels::check
