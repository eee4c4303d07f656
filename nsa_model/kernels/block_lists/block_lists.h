#pragma once
// Inverts the selection on the device: from "blocks of each token" to "tokens of each block", so
// that the selected branch can load every K/V block once and visit only the rows that chose it.
// Deterministic (lists are in token order), no host synchronisation, memory O(S). Workspace is the
// caller's.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Tokens that one unit of work visits at most. Lists of hot blocks are cut into several units,
// which bounds the longest one; 512 keeps the K/V load of a unit under 5 % of its traffic.
inline constexpr int kItemTokens = 512;

// The (batch, group) pairs of a problem, its lanes, are taken in rounds of at most kRoundRows
// (token, group) rows or one lane: partial results are kept for one round at a time.
inline constexpr int kRoundRows = 65536;
struct ListRound {
  int first_lane = 0; // batch * groups + group
  int lanes = 0;
};
__host__ __device__ constexpr ListRound all_lanes(const AttentionShape& shape) {
  return {0, shape.batch * shape.groups};
}
int list_rounds(const AttentionShape& shape);
// Round `index` of them. The last may have fewer lanes.
ListRound list_round(const AttentionShape& shape, int index);

// One unit of work: the entries [begin, end) of a segment's list.
struct WorkItem {
  int32_t segment; // (batch * groups + group) * block_count + block
  int32_t begin;
  int32_t end;
  int32_t index; // its own place among the units
};

struct BlockListsParams {
  AttentionShape shape;
  const int32_t* indices; // [batch, sequence, groups, 16], ascending, unique, -1 padding at the end
  int first_token = 0;    // tokens before it are left out of the lists
  int32_t* entries; // [batch * sequence * groups * 16]: token * 16 + slot, by segment and token
  int32_t* segment_start;      // [segments + 1] into entries
  int32_t* segment_item_start; // [segments + 1] into items
  WorkItem* items;             // [block_lists_item_capacity]
  uint32_t* claims;            // [1], set to 0: see UnitRange (rounds.cuh)
  int32_t* chunk_counts;       // workspace [block_lists_chunk_count_size]
};

int block_lists_segments(const AttentionShape& shape);
// Most items that any selection of this shape can give.
int block_lists_item_capacity(const AttentionShape& shape);
// Elements of `chunk_counts`.
std::size_t block_lists_chunk_count_size(const AttentionShape& shape);

// The number of items is segment_item_start[segments], on the device.
cudaError_t launch_block_lists(const BlockListsParams& params, cudaStream_t stream);

} // namespace nsa::kernels
