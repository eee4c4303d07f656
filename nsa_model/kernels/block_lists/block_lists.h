#pragma once
// Inverts the selection on the device: from "blocks of each token" to "tokens of each block", so
// that the selected branch can load every K/V block once and visit only the rows that chose it.
// Deterministic (lists are in token order), no host synchronisation, memory O(S). Workspace is the
// caller's.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "nsa_model/kernels/common/limits.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Tokens that one unit of work visits at most. Lists of hot blocks are cut into several units,
// which bounds the longest one; 512 keeps the K/V load of a unit under 5 % of its traffic.
inline constexpr int kItemTokens = 512;

// How the lists of every KV head, a (batch, group) pair, are cut. Where a KV head's pairs of token
// and slot are too many for one round of the backward (rounds.h), its tokens are cut into sections,
// and each section has lists of its own: list number kv_head * sections + section, block.
struct ListCut {
  int sequence = 0;
  int first_token = 0; // tokens before it are in no list
  int sections = 1;    // of a KV head
  int chunks = 0;      // of kListChunk tokens, that a section has; with several sections

  // The tokens of a section are [begin, end).
  __host__ __device__ constexpr int begin(int section) const {
    return section == 0 ? first_token : first_chunk(section) * kListChunk;
  }
  __host__ __device__ constexpr int end(int section) const {
    return section + 1 == sections ? sequence : first_chunk(section + 1) * kListChunk;
  }
  // The chunks of the sequence that a section's tokens lie in are [first_chunk, end_chunk).
  __host__ __device__ constexpr int first_chunk(int section) const {
    return first_token / kListChunk + section * chunks;
  }
  __host__ __device__ constexpr int end_chunk(int section) const {
    return (end(section) + kListChunk - 1) / kListChunk;
  }
  __host__ __device__ constexpr int section_of_chunk(int chunk) const {
    const int listed = chunk - first_token / kListChunk;
    return sections == 1 || listed < 0 ? 0 : listed / chunks;
  }
};

// One unit of work: the entries [begin, end) of a segment's list.
struct WorkItem {
  int32_t segment; // list * block_count + block, see ListCut
  int32_t begin;
  int32_t end;
  int32_t index; // its own place among the units
};

struct BlockListsParams {
  AttentionShape shape;
  ListCut cut;
  const int32_t* indices; // [batch, sequence, groups, 16], ascending, unique, -1 padding at the end
  int32_t* entries; // [batch * sequence * groups * 16]: token * 16 + slot, by segment and token
  int32_t* segment_start;      // [segments + 1] into entries
  int32_t* segment_item_start; // [segments + 1] into items
  WorkItem* items;             // [block_lists_item_capacity]
  uint32_t* claims;            // [1], set to 0: see UnitRange (rounds.cuh)
  int32_t* chunk_counts;       // workspace [block_lists_chunk_count_size]
};

int block_lists_segments(const AttentionShape& shape, const ListCut& cut);
// Most items that any selection can give `kv_heads` KV heads of this shape.
int block_lists_item_capacity(const AttentionShape& shape, const ListCut& cut, int kv_heads);
// Elements of `chunk_counts`.
std::size_t block_lists_chunk_count_size(const AttentionShape& shape);

// The number of items is segment_item_start[segments], on the device.
cudaError_t launch_block_lists(const BlockListsParams& params, cudaStream_t stream);

} // namespace nsa::kernels
