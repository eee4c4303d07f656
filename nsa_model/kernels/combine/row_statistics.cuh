#pragma once
// The first of a row's statistics (BackwardPrepareParams): the log-sum to base 2 minus that of the
// gate, so that 2^(score - it) is the gated probability. It is +inf for a row without weight (no
// key, or gate 0).

#include <cmath>

namespace nsa::kernels {

// `lse` is a natural logarithm.
__device__ __forceinline__ float gated_lse(float lse, float gate) {
  const bool weightless = !(gate > 0.0f) || lse == -INFINITY;
  return weightless ? INFINITY : fmaf(lse, 1.4426950408889634f, -log2f(gate));
}

} // namespace nsa::kernels
