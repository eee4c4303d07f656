#pragma once
// Joins results along a token: the partial results of the selected branch into its output, and the
// three branches under their gates into the attention's output (Eq. 5). Forward and backward.
// Memory-bound, fixed order of summation, no atomics. D = shape.head_dim.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_lists/rounds.h"
#include "nsa_model/kernels/common/packed_slots.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct MergeParams {
  AttentionShape shape;
  ListRound round;                  // whose tokens are merged; without KV heads: all
  const int32_t* indices;           // [batch, sequence, groups, 16]
  int first_token = 0;              // tokens before it already have out_slc and lse_slc
  bool joined = false;              // with `packed`: slots are those of JoinedBlocks
  const __nv_bfloat16* partial_out; // [rows of PairRows, 16, heads, D]
  const float* partial_lse;         // [rows of PairRows, 16, head_floats(heads)], base 2
  const PackedOut* packed;          // [rows, 16; joined: kJoinedSlots], of six heads of 64,
                                    // instead of the two; nullptr: they are meant
  const __nv_bfloat16* v;           // [batch, sequence, groups, 64], with `packed`
  __nv_bfloat16* out_slc; // [batch, sequence, groups * heads, D]; nullptr: branch off, zero
  float* lse_slc;         // [batch, sequence, groups * heads], natural
  // All four, or none when only the selected branch is wanted.
  const __nv_bfloat16* out_cmp; // as out_slc; nullptr: branch off, counts as zero
  const __nv_bfloat16* out_win; // as out_slc; nullptr: branch off, counts as zero
  const float* gates;           // [batch, sequence, groups * heads, 3]
  __nv_bfloat16* out;           // as out_slc
};
cudaError_t launch_merge(const MergeParams& params, cudaStream_t stream);

// Per (token, group) and branch, what a backward kernel needs of a query row: head_floats(heads)
// floats each of
//   log2(sum of 2^(score * log2 e)) - log2(gate), so that 2^(score - it) is the gated probability,
//   and delta = sum(d_out * out_branch).
// +inf in the first marks rows without weight (no key, gate 0). One more row of +inf and 0 ends the
// buffer: what padding rows of a tile point at.
inline constexpr int kRowStatistics = 2 * head_floats(kHeadsPerGroup); // of 6 heads
// Of 6 heads the place behind the selected branch's lse holds block_bits of tokens below
// kMostMaskedTokens.
inline constexpr int kBlockBitsStatistic = kHeadsPerGroup;

struct BackwardPrepareParams {
  AttentionShape shape;
  const __nv_bfloat16* d_out;         // [batch, sequence, groups * heads, D]
  const float* gates;                 // [batch, sequence, groups * heads, 3], >= 0; nullptr means 1
  const __nv_bfloat16* branch_out[3]; // compressed, selected, window; nullptr: branch off
  const float* branch_lse[3];         // [batch, sequence, groups * heads], natural
  float* statistics[3]; // [batch * sequence * groups + 1, 2 head_floats(heads)]; nullptr for a
                        // branch off
  const int32_t* indices = nullptr; // for block_bits; nullptr: not wanted
  float* d_gates;                   // as gates, all written; nullptr when not wanted
};
cudaError_t launch_backward_prepare(const BackwardPrepareParams& params, cudaStream_t stream);

struct MergeQueryGradientParams {
  AttentionShape shape;
  ListRound round;                 // whose tokens are merged; without KV heads: all
  const int32_t* indices;          // as above; nullptr: no partials
  int from = 0;                    // tokens before it are not visited
  int first_token = 0;             // tokens before it have no partials
  const __nv_bfloat16* partial_dq; // [rows of PairRows, 16, heads, D], to be multiplied by the
  float scale = 0.125f;            //   softmax scale
  const __nv_bfloat16* addends[3]; // each nullptr or [batch, sequence, groups * heads, D]; may be
                                   // d_q itself
  int addend_end[3];               // an addend counts for tokens before its end
  __nv_bfloat16* d_q;              // [batch, sequence, groups * heads, D]
};
cudaError_t launch_merge_query_gradient(const MergeQueryGradientParams& params,
                                        cudaStream_t stream);

} // namespace nsa::kernels
