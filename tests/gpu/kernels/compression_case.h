#pragma once
// The learned compression against float64 loops on the host. One thread.

#include <climits>

namespace nsa::kernels::check {

// Cases of at most so many tokens.
void check_learned_compression(int most_tokens = INT_MAX);

} // namespace nsa::kernels::check
