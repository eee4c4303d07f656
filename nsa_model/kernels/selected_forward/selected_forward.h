#pragma once
// Forward of the selected branch, first half: attention of a round's listed (token, block) pairs,
// KV-major. Each K/V block is loaded once a work item and the query rows of the tokens that chose
// it are gathered, all heads of the group. Leaves one locally normalised partial result
// a pair; `launch_merge` (combine/) joins a token's partials. Deterministic, no atomics on results.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_lists/rounds.h"
#include "nsa_model/kernels/common/packed_slots.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct SelectedForwardParams {
  AttentionShape shape;
  ListRound round;
  const __nv_bfloat16* q; // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k; // [batch, sequence, groups, D]
  const __nv_bfloat16* v; // [batch, sequence, groups, D]
  const int32_t* entries; // from launch_block_lists
  const int32_t* segment_start;
  const int32_t* segment_item_start;
  const WorkItem* items;
  uint32_t* claims;           // 0, and left so, see UnitRange
  int joined_first_token = 0; // of JoinedBlocks; with `packed`
  float scale = 0.125f;
  __nv_bfloat16* partial_out; // [rows of PairRows, slots, heads, D], listed pairs are written
  float* partial_lse;         // [rows, slots, head_floats(heads)], log2 of the sum of 2^score
  PackedOut* packed;          // [rows, slots], of six heads, instead of the two; else nullptr
                              // slots: 16, or kJoinedSlots where blocks are joined
};

cudaError_t launch_selected_forward(const SelectedForwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
