#pragma once
// Reductions over a quad, the four lanes that hold a row of a fragment. All of its lanes call them
// and get the result. Device code only.

namespace nsa::kernels {

__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}
template <typename Value> __device__ __forceinline__ Value largest_of_quad(Value value) {
  value = max(value, __shfl_xor_sync(~0u, value, 1));
  return max(value, __shfl_xor_sync(~0u, value, 2));
}

} // namespace nsa::kernels
