#pragma once
// Writes a warp's sums to rows of the results. They are rounded into the warp's strip. While the
// products of the next piece run, they are read from there, and SiLU of them is written to global
// memory. Device code only.

#include "nsa_model/kernels/silu_product/config.h"

namespace nsa::kernels::silu_product {

#if NSA_HOPPER_CODE

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal_approximate(1.0f + exp2_approximate(-kLog2e * x));
}
__device__ __forceinline__ float silu(float x) {
  return x * sigmoid(x);
}
__device__ __forceinline__ float silu_gradient(float x) {
  const float s = sigmoid(x);
  return s * fmaf(x, 1.0f - s, 1.0f);
}
__device__ __forceinline__ float low_bf16(uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t word) {
  return __uint_as_float(word & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t silu_of_pair(uint32_t before) {
  return pack_bf16(silu(low_bf16(before)), silu(high_bf16(before)));
}
__device__ __forceinline__ uint32_t gradient_of_pair(uint32_t d_after, uint32_t before) {
  return pack_bf16(low_bf16(d_after) * silu_gradient(low_bf16(before)),
                   high_bf16(d_after) * silu_gradient(high_bf16(before)));
}
// Loads sixteen bytes by inline PTX. The compiler splits a vector if its words are used one by one.
// A volatile load also stays where it is written, before the work that hides its latency.
__device__ __forceinline__ uint4 load_once(const __nv_bfloat16* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// Accesses in flight together. An access covers one row, or two of a narrow piece: 1 << shift.
inline constexpr int kAtOnce = 2;

// Writes one access of a row. `sum` is the rounded product; the backward also uses `before`.
template <Pass kPass>
__device__ __forceinline__ void write_vector(const ProductParams& params, int64_t to,
                                             const uint4& sum, const uint4& before) {
  if constexpr (kPass != Pass::kForward) {
    if constexpr (kPass == Pass::kBackwardWithAfter)
      store_vector(params.after_out + to, {silu_of_pair(before.x), silu_of_pair(before.y),
                                           silu_of_pair(before.z), silu_of_pair(before.w)});
    store_vector(params.out + to,
                 {gradient_of_pair(sum.x, before.x), gradient_of_pair(sum.y, before.y),
                  gradient_of_pair(sum.z, before.z), gradient_of_pair(sum.w, before.w)});
  } else {
    store_vector(params.before_out + to, sum);
    store_vector(params.out + to, {silu_of_pair(sum.x), silu_of_pair(sum.y), silu_of_pair(sum.z),
                                   silu_of_pair(sum.w)});
  }
}

// Reads the rows of `before` for the next sums in advance.
__device__ __forceinline__ void read_ahead(uint4 (&ahead)[kAtOnce], const ProductParams& params,
                                           int64_t at, int row, int shift) {
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i)
    ahead[i] = load_once(params.before_in + at + int64_t{row + (i << shift)} * params.columns);
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::silu_product
