#pragma once
// One long sequence against float64 on samples of its rows and keys, where all of them would take
// minutes. One thread.

#include <string>

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// Outputs, log-sums, dQ, gates' gradients and selected blocks of some tokens; dK and dV of some
// keys, first ones, which every token sees, and last ones among them.
bool run_sampled_case(const std::string& name, const CaseOptions& options);

} // namespace nsa::kernels::check
