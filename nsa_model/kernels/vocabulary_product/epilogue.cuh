#pragma once
// From a warp's exponents of 2 to exponentials and their sums. Device code only.

#include "nsa_model/kernels/cluster_product/multiply.cuh"
#include "nsa_model/kernels/vocabulary_product/config.h"
#include "nsa_model/kernels/vocabulary_product/exponents.cuh"

namespace nsa::kernels::vocabulary_product {

#if NSA_HOPPER_CODE

// A warp's rows of a piece. They are written in passes of kPassRows rows and kHalfColumns columns.
struct Rows {
  int first = 0, column = 0;
  int label = -1; // column of the label of row `lane` % kWarpRows
  int pass = 0, passes = 0;
  __device__ __forceinline__ bool left() const { return pass < passes; }
};

// Writes the exponentials of a pass and the sum of each row. `half` has the exponents.
__device__ __forceinline__ void write_pass(const ProductParams& params, uint32_t half, int lane,
                                           Rows& rows) {
  const int in_strip = rows.pass % kRowPasses * kPassRows + lane / kRowLanes;
  const uint32_t from =
      half + in_strip * kRowBytes + ((lane % kRowLanes ^ in_strip % kMatrixRows) << 4);
  const int row = rows.first + in_strip;
  const int half_column = rows.column + rows.pass / kRowPasses * kHalfColumns;
  const int column = half_column + lane % kRowLanes * kVectorValues;
  const int label = __shfl_sync(~0u, rows.label, in_strip) - column;
  __nv_bfloat16* const to = params.exponentials + int64_t{row} * params.columns + column;
  constexpr int kVectors = kHalfColumns / kPanelColumns;
  uint4 vectors[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    vectors[i] = load_shared(from + i * kPanelBytes);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    leave_out(vectors[i], label - i * kPanelColumns);
    const uint4 values = exponentials(vectors[i], sum);
    if (row < params.rows) store_vector(to + i * kPanelColumns, values);
  }
  for (int step = kRowLanes / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(~0u, sum, step);
  if (lane % kRowLanes == 0)
    params.sums[int64_t{half_column / kHalfColumns} * params.grid.padded_rows() + row] = sum;
  ++rows.pass;
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::vocabulary_product
