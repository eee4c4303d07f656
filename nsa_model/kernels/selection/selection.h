#pragma once
// Block selection (Eq. 8 to 12): importance scores of the blocks from the compressed attention,
// summed over the heads of a group, and the best blocks of every token. Scores stay in shared
// memory up to kMostSharedScores tokens, and beyond that in global memory, of the tiles that are
// being worked on: 43 MB at 131,072 tokens, which the L2 cache holds. Deterministic; ties go to the
// lower block.
//
// With c = token / 64: blocks {0, c-1, c} are always taken, the rest of the 16 slots goes to the
// best of 1 .. c-2; below 16 causal blocks all of them are taken.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct SelectionParams {
  AttentionShape shape;
  const __nv_bfloat16* q;     // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k_cmp; // [batch, compressed_count(sequence), groups, D]
  const float* lse_cmp; // [batch, sequence, groups * heads], natural, of the compressed branch
  float scale = 0.125f;
  int32_t* indices; // [batch, sequence, groups, 16], ascending, unique, -1 padding at the end
  float* scores = nullptr; // selection_score_bytes of scratch memory
};
// Sequences up to this keep a tile's scores in shared memory.
inline constexpr int kMostSharedScores = 65536;
std::size_t selection_score_bytes(const AttentionShape& shape); // on the current device
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream);

} // namespace nsa::kernels
