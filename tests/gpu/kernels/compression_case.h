#pragma once
// Compares the learned compression with float64 loops on the host. One thread.

#include <climits>

namespace nsa::kernels::check {

// Runs the cases with at most this many tokens.
void check_learned_compression(int most_tokens = INT_MAX);

} // namespace nsa::kernels::check
