#pragma once
// What the kernels beside the product compute for a row. It compiles for the host too, so that
// tests can run it without a GPU.

#include <cmath>

#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::vocabulary_product {

struct RowResult {
  float loss, factor, label_factor;
};
// `others` has the exponentials of the row without the label's, which is 1. So a row whose label
// has a probability close to 1 keeps all digits of its loss and gradient.
__host__ __device__ __forceinline__ RowResult row_result(float others, float weight, bool known) {
  if (!known) return {NAN, 0.0f, 0.0f};
  const float factor = weight / (1.0f + others);
  return {weight * log1pf(others), factor, -factor * others};
}

__host__ __device__ __forceinline__ bool is_known(int64_t label, int columns) {
  return label >= 0 && label < columns;
}

// The part of a dot product that one of kWarpThreads lanes computes.
__host__ __device__ __forceinline__ float part_of_dot(const __nv_bfloat16* a,
                                                      const __nv_bfloat16* b, int inner, int lane) {
  float sum = 0.0f;
  for (int i = lane * kVectorValues; i < inner; i += kWarpThreads * kVectorValues) {
    const Eight left = unpack(load_vector(a + i)), right = unpack(load_vector(b + i));
#pragma unroll
    for (int j = 0; j < kVectorValues; ++j)
      sum = fmaf(left.values[j], right.values[j], sum);
  }
  return sum;
}

// to = factor from.
__host__ __device__ __forceinline__ void scale_vector(__nv_bfloat16* to, const __nv_bfloat16* from,
                                                      float factor) {
  Eight scaled = unpack(load_vector(from));
#pragma unroll
  for (float& value : scaled.values)
    value *= factor;
  store(to, scaled);
}

// to = factor product + label_factor label_row. A row of an unknown label has no label_row.
__host__ __device__ __forceinline__ void add_label_row(__nv_bfloat16* to, const float* product,
                                                       float factor, const __nv_bfloat16* label_row,
                                                       float label_factor) {
  Eight sum = {};
  accumulate(sum, product, factor);
  if (label_row != nullptr) accumulate(sum, label_row, label_factor);
  store(to, sum);
}

} // namespace nsa::kernels::vocabulary_product
