#pragma once
// Block selection (Eq. 8 to 12): importance scores of the blocks from the compressed attention,
// summed over the heads of a group, and the best blocks of every token. Scores never leave the SM:
// memory is O(1) a token at any length. Deterministic; ties go to the lower block.
//
// With c = token / 64: blocks {0, c-1, c} are always taken, the rest of the 16 slots goes to the
// best of 1 .. c-2; below 16 causal blocks all of them are taken.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct SelectionParams {
  AttentionShape shape;
  const __nv_bfloat16* q;     // [batch, sequence, groups * heads, 64]
  const __nv_bfloat16* k_cmp; // [batch, compressed_count(sequence), groups, 64]
  const float* lse_cmp; // [batch, sequence, groups * heads], natural, of the compressed branch
  float scale = 0.125f;
  int32_t* indices; // [batch, sequence, groups, 16], ascending, unique, -1 padding at the end
};
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream);

} // namespace nsa::kernels
