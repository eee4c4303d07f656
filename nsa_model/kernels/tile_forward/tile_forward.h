#pragma once
// Forward of the branches in which a token sees one interval of keys: sliding window, compressed
// tokens, and plain causal attention over the first tokens of a sequence (where every block is
// selected). Query-major flash attention on wgmma. Deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// The branch is the selected one and the last of the three. Its kernel adds the others' rows,
// multiplied by their gates, where it writes its own (Eq. 5), as launch_merge would.
struct GatedRows {
  // As TileForwardParams::out; nullptr: the branch is off.
  const __nv_bfloat16* compressed = nullptr;
  const __nv_bfloat16* window = nullptr;
  const float* gates = nullptr; // [batch, sequence, groups * heads, 3] in the order of the branches
  __nv_bfloat16* sum = nullptr; // as TileForwardParams::out; nullptr: no sum is computed
};

struct TileForwardParams {
  AttentionShape shape;
  KeyRange range = KeyRange::kWindow;
  int window =
      kWindow; // keys that a token sees, including itself; at least `sequence` for causal attention
  int token_end = 0;      // rows of tokens [0, token_end) are computed and written
  const __nv_bfloat16* q; // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k; // [batch, keys, groups, D]; keys = sequence or compressed_count(sequence)
  const __nv_bfloat16* v; // as k
  float scale = 0.125f;
  const int32_t* indices = nullptr; // [batch, sequence, groups, 16], for KeyRange::kBlocks
  __nv_bfloat16* out; // [batch, sequence, groups * heads, D]; rows that see no key are zero
  float* lse;         // [batch, sequence, groups * heads], natural logarithm; -inf for such rows
  int leave_ctas = 0; // multiprocessors left to other kernels; the kernel keeps at least one
  GatedRows gated;    // for the ranges kWindow and kBlocks
};

cudaError_t launch_tile_forward(const TileForwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
