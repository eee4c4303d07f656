#pragma once
// Gradient of a table whose rows are looked up by token and which is multiplied with elsewhere too
// (an embedding tied to the output layer): the other use's gradient and the rows of the lookup's in
// one pass over the table. Deterministic: a row's addends come in the order of their tokens, and no
// value is added by an atomic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels {

struct EmbeddingGradientParams {
  int tokens = 0;             // that were looked up
  int rows = 0, columns = 0;  // of the table
  const int64_t* ids;         // [tokens], the row of each; one outside [0, rows) adds nothing
  const __nv_bfloat16* d_out; // [tokens, columns], 16-byte aligned
  const float* base;          // [rows, columns], 16-byte aligned; nullptr: zeros
  const float* scale;         // what base is multiplied by; with base
  int32_t* workspace;         // embedding_gradient_workspace() words, 16-byte aligned
  __nv_bfloat16* d_table;     // [rows, columns], 16-byte aligned
};
// Sizes: those of serves::embedding_gradient(), else cudaErrorInvalidValue.
std::size_t embedding_gradient_workspace(int tokens, int rows); // in words of 32 bits
cudaError_t launch_embedding_gradient(const EmbeddingGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels
