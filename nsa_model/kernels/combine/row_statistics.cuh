#pragma once
// The first of a row's statistics (BackwardPrepareParams): the log-sum to base 2, less the gate's,
// so that 2^(score - it) is the gated probability; +inf without weight (no key, gate 0).

#include <cmath>

namespace nsa::kernels {

// `lse` is natural.
__device__ __forceinline__ float gated_lse(float lse, float gate) {
  const bool weightless = !(gate > 0.0f) || lse == -INFINITY;
  return weightless ? INFINITY : fmaf(lse, 1.4426950408889634f, -log2f(gate));
}

} // namespace nsa::kernels
