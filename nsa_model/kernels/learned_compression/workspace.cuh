#pragma once
// Intermediate results of the backward's kernels.

#include <cuda_bf16.h>

namespace nsa::kernels::learned_compression {

// The workspace's parts, each aligned to 256 bytes.
struct Workspace {
  __nv_bfloat16* d_hidden; // [2, rows, 128]
  float* hidden_parts;     // [2, hidden_part_count, kPartFloats]
  float* weight_parts;     // [2, weight_part_count, 128, 32 * 64]
};

} // namespace nsa::kernels::learned_compression
