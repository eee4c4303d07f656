#pragma once
// Runs between the product of all projections and the attention. It splits the joined rows into
// queries, keys and values and rotates some of them (RoPE, half-split pairs). It also computes the
// mean query of each group for the gate. The backward does the reverse. One pass each.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace nsa::kernels {

inline constexpr int kMaxHeadSets = 6; // keys and values of three branches

// A joined row: `heads` query heads, then `sets` times `groups` heads. Queries and the first
// `rotated` sets are rotated.
struct HeadLayout {
  int64_t tokens = 0; // batch * sequence
  int sequence = 0;
  int heads = 0, groups = 0; // heads is a multiple of groups
  int head_dim = 0;          // a multiple of 16
  int sets = 0, rotated = 0;
  // Tables are [tokens, head_dim / 2] instead of [sequence, head_dim / 2].
  bool table_per_token = false;
  const float* cos;
  const float* sin;
};

struct HeadSplitParams {
  HeadLayout layout;
  const __nv_bfloat16* joined;      // [tokens, heads + sets * groups, head_dim]
  __nv_bfloat16* q;                 // [tokens, heads, head_dim]
  __nv_bfloat16* set[kMaxHeadSets]; // [tokens, groups, head_dim]
  // [tokens, groups, head_dim], means of queries before rotation; nullptr: not wanted.
  __nv_bfloat16* mean;
};
cudaError_t launch_head_split(const HeadSplitParams& params, cudaStream_t stream);

struct HeadSplitBackwardParams {
  HeadLayout layout;
  const __nv_bfloat16* d_q; // shapes as above
  const __nv_bfloat16* d_set[kMaxHeadSets];
  const __nv_bfloat16* d_mean; // nullptr: no mean was computed
  __nv_bfloat16* d_joined;     // every element is written
};
cudaError_t launch_head_split_backward(const HeadSplitBackwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
