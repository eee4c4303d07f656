#pragma once
// Merges results of a token: the partial results of the selected branch into its output, and the
// three branches with their gates into the attention's output (Eq. 5). Forward and backward. The
// kernels are memory-bound. The order of summation is fixed, and there are no atomics. D =
// shape.head_dim.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_lists/rounds.h"
#include "nsa_model/kernels/common/packed_slots.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct MergeParams {
  AttentionShape shape;
  ListRound round;                  // the tokens to merge; no KV heads means all tokens
  const int32_t* indices;           // [batch, sequence, groups, 16]
  int first_token = 0;              // tokens before it already have out_slc and lse_slc
  bool joined = false;              // with `packed`: slots are numbered as for JoinedBlocks
  const __nv_bfloat16* partial_out; // [rows of PairRows, 16, heads, D]
  const float* partial_lse;         // [rows of PairRows, 16, head_floats(heads)], base 2
  // [rows, 16; joined: kJoinedSlots], for six heads of 64 dimensions. It replaces partial_out and
  // partial_lse, which are used if it is nullptr.
  const PackedOut* packed;
  const __nv_bfloat16* v; // [batch, sequence, groups, 64], with `packed`
  // [batch, sequence, groups * heads, D]; nullptr: the branch is off and counts as zero
  __nv_bfloat16* out_slc;
  float* lse_slc; // [batch, sequence, groups * heads], natural
  // All four are set, or none if only the selected branch is wanted.
  const __nv_bfloat16* out_cmp; // as out_slc; nullptr: the branch is off and counts as zero
  const __nv_bfloat16* out_win; // as out_slc; nullptr: the branch is off and counts as zero
  const float* gates;           // [batch, sequence, groups * heads, 3]
  __nv_bfloat16* out;           // as out_slc
};
cudaError_t launch_merge(const MergeParams& params, cudaStream_t stream);

// For each (token, group) and branch, the values of a query row that a backward kernel needs. They
// are head_floats(heads) floats of each of
//   log2(sum of 2^(score * log2 e)) - log2(gate), so that 2^(score - it) is the gated probability,
//   and delta = sum(d_out * out_branch).
// The first is +inf for a row without weight (no key, or gate 0). The buffer ends with one more row
// of +inf and 0, to which padding rows of a tile refer.
inline constexpr int kRowStatistics = 2 * head_floats(kHeadsPerGroup); // for 6 heads
// For 6 heads, the place after the selected branch's lse holds block_bits of tokens below
// kMostMaskedTokens.
inline constexpr int kBlockBitsStatistic = kHeadsPerGroup;

struct BackwardPrepareParams {
  AttentionShape shape;
  const __nv_bfloat16* d_out;         // [batch, sequence, groups * heads, D]
  const float* gates;                 // [batch, sequence, groups * heads, 3], >= 0; nullptr means 1
  const __nv_bfloat16* branch_out[3]; // compressed, selected, window; nullptr: branch off
  const float* branch_lse[3];         // [batch, sequence, groups * heads], natural
  // [batch * sequence * groups + 1, 2 head_floats(heads)]; nullptr if the branch is off.
  float* statistics[3];
  const int32_t* indices = nullptr; // for block_bits; nullptr: not wanted
  float* d_gates;                   // as gates, every element is written; nullptr if not wanted
};
cudaError_t launch_backward_prepare(const BackwardPrepareParams& params, cudaStream_t stream);

struct MergeQueryGradientParams {
  AttentionShape shape;
  ListRound round;                 // the tokens to merge; no KV heads means all tokens
  const int32_t* indices;          // as above; nullptr: there are no partial results
  int from = 0;                    // tokens before it are not visited
  int first_token = 0;             // tokens before it have no partial results
  const __nv_bfloat16* partial_dq; // [rows of PairRows, 16, heads, D], before the softmax scale
  float scale = 0.125f;            // softmax scale of partial_dq
  // Each nullptr or [batch, sequence, groups * heads, D]; may be d_q itself.
  const __nv_bfloat16* addends[3];
  int addend_end[3];  // addend i counts for tokens before addend_end[i]
  __nv_bfloat16* d_q; // [batch, sequence, groups * heads, D]
};
cudaError_t launch_merge_query_gradient(const MergeQueryGradientParams& params,
                                        cudaStream_t stream);

} // namespace nsa::kernels
