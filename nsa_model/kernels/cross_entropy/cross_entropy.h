#pragma once
// Softmax cross-entropy of rows of logits, and its gradient, which replaces them. The logits are
// read from memory once and never exist in FP32. Deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace nsa::kernels {

struct CrossEntropyParams {
  int rows = 0;
  int columns = 0; // a multiple of 8
  // [rows, columns], aligned to 16 bytes; with `gradient`, overwritten by weight * (softmax -
  // one_hot(label))
  __nv_bfloat16* logits;
  const int64_t* labels; // [rows]; the loss is NaN for a label outside [0, columns)
  const float* weight;   // [rows], weight of each row in the loss
  float* loss;           // [rows] = -weight * log softmax[label]
  bool gradient = false;
};
cudaError_t launch_cross_entropy(const CrossEntropyParams& params, cudaStream_t stream);

} // namespace nsa::kernels
