#pragma once
// Block selection (Eq. 8 to 12): importance scores of the blocks from the compressed attention,
// summed over the heads of a group, and the best blocks of every token. Scores stay in shared
// memory up to kMostSharedScores tokens. In longer sequences the scores of the tiles in progress
// are in global memory: 43 MB at 65,536 tokens and 87 MB at 131,072. Deterministic; ties go to
// the lower block.
//
// With c = token / 64, blocks {0, c-1, c} are always selected. The best of 1 .. c-2 fill the rest
// of the 16 slots. If there are at most 16 causal blocks, all of them are selected.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct SelectionParams {
  AttentionShape shape;
  const __nv_bfloat16* q;     // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k_cmp; // [batch, compressed_count(sequence), groups, D]
  // [batch, sequence, groups * heads], natural; output of the compressed branch.
  const float* lse_cmp;
  float scale = 0.125f;
  int32_t* indices; // [batch, sequence, groups, 16], ascending, unique, -1 padding at the end
  float* scores = nullptr; // scratch memory of selection_score_bytes
};
// Up to this length, a tile's scores are in shared memory. Above it, global memory is faster (lab
// "bound-of-a-selection").
inline constexpr int kMostSharedScores = 32768;
std::size_t selection_score_bytes(const AttentionShape& shape); // for the current device
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream);

} // namespace nsa::kernels
