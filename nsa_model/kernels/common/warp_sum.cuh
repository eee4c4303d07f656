#pragma once
// The sum of a value over the lanes of a warp, in a fixed order. Device code only.

#include "nsa_model/kernels/common/lanes.h"

namespace nsa::kernels {

// Every lane gets the sum.
__device__ __forceinline__ float warp_sum(float value) {
  for (int step = kWarpThreads / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(~0u, value, step);
  return value;
}

} // namespace nsa::kernels
