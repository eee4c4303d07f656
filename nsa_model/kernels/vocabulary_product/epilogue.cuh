#pragma once
// From a warp's logits to exponentials and their sums. Device code only.

#include <cmath>

#include "nsa_model/kernels/vocabulary_product/config.h"

namespace nsa::kernels::vocabulary_product {

#if NSA_HOPPER_CODE

// Returns the smaller number, or NaN if one is NaN. fminf() would hide a NaN.
__device__ __forceinline__ float smaller(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Sets the logits of labels to -infinity, so that their exponentials are 0. `label` has the columns
// of the rows' labels within the piece. Few pieces contain a label of a warp's rows.
__device__ __forceinline__ void leave_labels_out(float (&logits)[kSums], const int (&label)[2],
                                                 int lane) {
  int at[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool mine = label[i] >= 0 && label[i] < kPieceColumns && label[i] % 8 / 2 == lane % 4;
    at[i] = mine ? label[i] / 8 * kGroupFloats + 2 * i + label[i] % 2 : -1;
  }
  if (!__any_sync(~0u, at[0] >= 0 || at[1] >= 0)) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    if (i == at[i % kGroupFloats / 2]) logits[i] = -INFINITY;
}

// Replaces logits by exponentials, and adds them to the sums of the lane's two rows. `shift` has
// the rows' label logits times log2 e.
template <int kFirst, int kCount>
__device__ __forceinline__ void exponentials(float (&logits)[kSums], const float (&shift)[2],
                                             float (&sums)[2]) {
  float part[kGroupFloats] = {};
#pragma unroll
  for (int i = kFirst; i < kFirst + kCount; ++i) {
    const float exponent = fmaf(logits[i], kLog2e, -shift[i % kGroupFloats / 2]);
    logits[i] = exp2_approximate(smaller(exponent, kLargestExponent));
    part[i % kGroupFloats] += logits[i];
  }
  sums[0] += part[0] + part[1];
  sums[1] += part[2] + part[3];
}

// The sum over the four lanes that share a row.
__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::vocabulary_product
