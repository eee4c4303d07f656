#pragma once
// The factor that makes whole numbers of a token's dQ (compressed_backward.cu). Host and device.

#include <cuda_runtime_api.h>

#include <cmath>

namespace nsa::kernels::compressed_backward {

// A bound of |dQ| times the factor is below 2^kSumBits. Two more bits are left for errors of the
// bound: the probabilities of a row may add up to almost four.
inline constexpr int kSumBits = 29;
// Both limits keep factor and inverse normal numbers.
inline constexpr int kMostExponent = 120;
inline constexpr int kLeastExponent = -120;

// The power of two for a bound of |dQ| >= 0. NaN if the bound is no number or infinite: then dQ is
// NaN, as in the other kernels, although a whole number cannot be.
__host__ __device__ inline float query_scale(double bound) {
  if (!(bound <= 1e300)) return NAN;
  const int exponent = bound < 1e-300 ? kMostExponent : kSumBits - 1 - ilogb(bound);
  return ldexpf(1.0f, exponent > kMostExponent    ? kMostExponent
                      : exponent < kLeastExponent ? kLeastExponent
                                                  : exponent);
}

} // namespace nsa::kernels::compressed_backward
