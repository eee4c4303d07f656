#pragma once
// Eight neighbouring bf16 (16 bytes) as FP32 values, the unit that a thread of a memory-bound
// kernel owns. It compiles for the host too, so that tests can run a thread's work without a GPU.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "nsa_model/kernels/common/device.cuh"
#include "nsa_model/kernels/common/lanes.h"

namespace nsa::kernels {

struct Eight {
  float values[kVectorValues];
};

// Eight bf16 in their memory format: half the registers for values that are needed later.
__host__ __device__ __forceinline__ uint4 load_vector(const __nv_bfloat16* source) {
  return *reinterpret_cast<const uint4*>(source);
}
__host__ __device__ __forceinline__ Eight unpack(const uint4& vector) {
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  Eight eight;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    eight.values[2 * i] = __builtin_bit_cast(float, words[i] << 16);
    eight.values[2 * i + 1] = __builtin_bit_cast(float, words[i] & 0xFFFF0000u);
  }
  return eight;
}
// sum += factor * the eight values.
__host__ __device__ __forceinline__ void accumulate(Eight& sum, const uint4& vector, float factor) {
  const Eight eight = unpack(vector);
#pragma unroll
  for (int i = 0; i < kVectorValues; ++i)
    sum.values[i] = fmaf(factor, eight.values[i], sum.values[i]);
}
// sum += factor * source[0..7]; `source` must be aligned to 16 bytes.
__host__ __device__ __forceinline__ void accumulate(Eight& sum, const __nv_bfloat16* source,
                                                    float factor) {
  accumulate(sum, load_vector(source), factor);
}
__host__ __device__ __forceinline__ void accumulate(Eight& sum, const float* source, float factor) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(source + 4 * i);
    sum.values[4 * i] = fmaf(factor, four.x, sum.values[4 * i]);
    sum.values[4 * i + 1] = fmaf(factor, four.y, sum.values[4 * i + 1]);
    sum.values[4 * i + 2] = fmaf(factor, four.z, sum.values[4 * i + 2]);
    sum.values[4 * i + 3] = fmaf(factor, four.w, sum.values[4 * i + 3]);
  }
}
__host__ __device__ __forceinline__ void store(__nv_bfloat16* target, const Eight& eight) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(eight.values[2 * i], eight.values[2 * i + 1]);
    memcpy(&words[i], &pair, sizeof(uint32_t));
  }
#ifdef __CUDA_ARCH__
  store_vector(target, {words[0], words[1], words[2], words[3]});
#else
  *reinterpret_cast<uint4*>(target) = {words[0], words[1], words[2], words[3]};
#endif
}

} // namespace nsa::kernels
