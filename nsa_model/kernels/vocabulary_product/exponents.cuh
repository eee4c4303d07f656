#pragma once
// Logits as exponents of 2 in FP16, two a word, and the exponentials of them. It compiles for the
// host too, so that tests can run it without a GPU.
//
// An exponent is log2 of p / p(label). FP16 has eleven significant bits, so an exponent x changes
// by at most 2^-11 |x|, and its exponential by a factor of 1 +- 2^-11 |x| ln 2. A BF16 logit l
// changes by up to 2^-8 |l|, so its exponential by a factor of 1 +- 2^-8 |l|.

#include <cuda_fp16.h>

#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::vocabulary_product {

inline constexpr float kLargestExponent = 100.0f;

template <typename Pair> __host__ __device__ __forceinline__ uint32_t word_of(const Pair& pair) {
  uint32_t word;
  static_assert(sizeof(pair) == sizeof(word));
  memcpy(&word, &pair, sizeof(word));
  return word;
}

__host__ __device__ __forceinline__ uint32_t pack_exponents(float low, float high) {
  return word_of(__floats2half2_rn(low, high));
}

// Sets one of eight exponents to -infinity. Few vectors have an exponent of a label.
__host__ __device__ __forceinline__ void leave_out(uint4& exponents, int index) {
  if (index < 0 || index >= kVectorValues) return;
  constexpr uint32_t kMinusInfinity = 0xFC00;
  const int shift = index % 2 * 16;
  const auto set = [&](uint32_t& word, int number) {
    if (index / 2 == number) word = (word & ~(0xFFFFu << shift)) | kMinusInfinity << shift;
  };
  set(exponents.x, 0);
  set(exponents.y, 1);
  set(exponents.z, 2);
  set(exponents.w, 3);
}

__host__ __device__ __forceinline__ float exponential(float exponent) {
#ifdef __CUDA_ARCH__
  return exp2_approximate(exponent);
#else
  return std::exp2(exponent);
#endif
}

// Returns two exponentials in BF16, and adds them to `sum` before they are rounded. Larger ones
// than 2^kLargestExponent are not possible. NaN stays NaN.
__host__ __device__ __forceinline__ uint32_t exponentials_of_pair(uint32_t exponents, float& sum) {
  __half2 pair;
  memcpy(static_cast<void*>(&pair), &exponents, sizeof(pair));
  const float2 clamped =
      __half22float2(__hmin2_nan(pair, __floats2half2_rn(kLargestExponent, kLargestExponent)));
  const float low = exponential(clamped.x), high = exponential(clamped.y);
  sum += low + high;
  return word_of(__floats2bfloat162_rn(low, high));
}
__host__ __device__ __forceinline__ uint4 exponentials(const uint4& exponents, float& sum) {
  return {exponentials_of_pair(exponents.x, sum), exponentials_of_pair(exponents.y, sum),
          exponentials_of_pair(exponents.z, sum), exponentials_of_pair(exponents.w, sum)};
}

} // namespace nsa::kernels::vocabulary_product
