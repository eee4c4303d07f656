#pragma once
// dQ of the compressed branch alone: with values that are no numbers, and with other later tokens.
// Both functions print a line and return true if nothing failed. One thread.

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// One value of Q, K, V, dO or a gate becomes NaN or infinite. Every row of dQ that is then NaN or
// infinite in two kernels is NaN in one. All other rows have their old bits, except the heads of
// the same token and tokens that visit the same column of keys.
bool run_invalid_case(const CaseOptions& options);
// The tokens after a cut change. No bit of dQ before it changes.
bool run_future_gradient_case(const CaseOptions& options);

} // namespace nsa::kernels::check
