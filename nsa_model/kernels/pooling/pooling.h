#pragma once
// phi as average pooling (Eq. 7): compressed token i is the mean of tokens 16 i .. 16 i + 31. Keys
// and values in one launch. FP32 accumulation; deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct PoolingParams {
  AttentionShape shape;
  const __nv_bfloat16* k; // [batch, sequence, groups, D]
  const __nv_bfloat16* v; // as k
  __nv_bfloat16* k_cmp;   // [batch, compressed_count(sequence), groups, D]
  __nv_bfloat16* v_cmp;   // as k_cmp
};
// Does nothing and returns cudaSuccess if the sequence has fewer than 32 tokens.
cudaError_t launch_pooling(const PoolingParams& params, cudaStream_t stream);

struct PoolingBackwardParams {
  AttentionShape shape;
  const float* d_k_cmp; // [batch, compressed_count(sequence), groups, D]
  const float* d_v_cmp; // as d_k_cmp
  // [batch, sequence, groups, D], every element is written (tokens of no block get zero)
  __nv_bfloat16* d_k;
  __nv_bfloat16* d_v; // as d_k
};
cudaError_t launch_pooling_backward(const PoolingBackwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
