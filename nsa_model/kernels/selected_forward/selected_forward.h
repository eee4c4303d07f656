#pragma once
// Forward of the selected branch, first half: attention of a round's listed (token, block) pairs,
// KV-major. Each K/V block is loaded once a work item. The query rows of the tokens that selected
// it are gathered, with all heads of the group. Each pair gets one locally normalised partial
// result. `launch_merge` (combine/) merges a token's partial results. Deterministic, no atomics on
// results.

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
  uint32_t* claims;           // initially 0, and 0 again after the launch; see UnitRange
  int joined_first_token = 0; // for JoinedBlocks; with `packed`
  float scale = 0.125f;
  __nv_bfloat16* partial_out; // [rows of PairRows, slots, heads, D]; only listed pairs are written
  float* partial_lse;         // [rows, slots, head_floats(heads)], log2 of the sum of 2^score
  // [rows, slots], for six heads; replaces the two above, else nullptr. There are 16 slots, or
  // kJoinedSlots if blocks are joined.
  PackedOut* packed;
};

cudaError_t launch_selected_forward(const SelectedForwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
