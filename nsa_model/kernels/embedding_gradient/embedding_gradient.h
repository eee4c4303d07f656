#pragma once
// Gradient of a table that is both looked up by token and multiplied elsewhere (an embedding tied
// to the output layer). It adds the other use's gradient and the lookup's rows in one pass over the
// table. A second list adds multiples of rows that the other use left out of its gradient.
// Deterministic: a row's addends are added in a fixed order, and no value is added by an atomic. Up
// to 32 are added in token order, those of the second list last.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels {

struct EmbeddingGradientParams {
  int tokens = 0;            // number of lookups
  int rows = 0, columns = 0; // of the table
  const int64_t* ids; // [tokens], the row of each token; an id outside [0, rows) adds nothing
  const __nv_bfloat16* d_out; // [tokens, columns], 16-byte aligned
  const float* base;          // [rows, columns], 16-byte aligned; nullptr: zeros
  const float* scale;         // factor of base; used with base
  int32_t* workspace;         // embedding_gradient_workspace() words, 16-byte aligned
  __nv_bfloat16* d_table;     // [rows, columns], 16-byte aligned
  // The second list: scale other_factors[i] other_rows[i] is added at row other_ids[i]. It needs
  // base.
  int others = 0;
  const int64_t* other_ids = nullptr;        // [others], as ids
  const __nv_bfloat16* other_rows = nullptr; // [others, columns], 16-byte aligned
  const float* other_factors = nullptr;      // [others]
};
// Unless serves::embedding_gradient() supports the sizes, with either list's tokens, the launch
// returns cudaErrorInvalidValue. The workspace is in 32-bit words, for the tokens of both lists.
std::size_t embedding_gradient_workspace(int tokens, int rows, int columns);
cudaError_t launch_embedding_gradient(const EmbeddingGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels
