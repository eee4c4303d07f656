#pragma once
// Softmax cross-entropy of rows of logits, and its gradient in their place: the logits are read
// from memory once and never exist in FP32. Deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace nsa::kernels {

struct CrossEntropyParams {
  int rows = 0;
  int columns = 0;       // a multiple of 8
  __nv_bfloat16* logits; // [rows, columns], 16-byte aligned; with `gradient` they become
                         //   weight * (softmax - one_hot(label))
  const int64_t* labels; // [rows]; one outside [0, columns) makes its loss NaN
  const float* weight;   // [rows], of the row in the loss
  float* loss;           // [rows] = -weight * log softmax[label]
  bool gradient = false;
};
cudaError_t launch_cross_entropy(const CrossEntropyParams& params, cudaStream_t stream);

} // namespace nsa::kernels
