#pragma once
// Inverts the selection on the device, from "blocks of each token" to "tokens of each block". So
// the selected branch loads every K/V block once and visits only the rows that selected it. Lists
// are in token order, so they are deterministic. The host is not synchronised, and memory is O(S).
// The caller provides the workspace.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "nsa_model/kernels/common/limits.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Largest number of tokens that one unit of work visits. Lists of hot blocks are cut into several
// units, which limits the longest one. With 512 the K/V load of a unit is under 5 % of its traffic.
inline constexpr int kItemTokens = 512;

// How the lists of every KV head, a (batch, group) pair, are cut. The pairs of token and slot of a
// KV head may be too many for one round of the backward (rounds.h). Its tokens are then cut into
// sections with lists of their own. List number: kv_head * sections + section; segment: list and
// block.
struct ListCut {
  int sequence = 0;
  int first_token = 0; // tokens before it are in no list
  int sections = 1;    // sections of a KV head
  int chunks = 0;      // chunks of kListChunk tokens in a section, if there are several sections

  // A section has the tokens [begin, end).
  __host__ __device__ constexpr int begin(int section) const {
    return section == 0 ? first_token : first_chunk(section) * kListChunk;
  }
  __host__ __device__ constexpr int end(int section) const {
    return section + 1 == sections ? sequence : first_chunk(section + 1) * kListChunk;
  }
  // The tokens of a section lie in the chunks [first_chunk, end_chunk) of the sequence.
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

// One unit of work: entries [begin, end) of a segment's list.
struct WorkItem {
  int32_t segment; // list * block_count + block, see ListCut
  int32_t begin;
  int32_t end;
  int32_t index; // its own index among the units
};

struct BlockListsParams {
  AttentionShape shape;
  ListCut cut;
  const int32_t* indices; // [batch, sequence, groups, 16], ascending, unique, -1 padding at the end
  // [batch * sequence * groups * 16]: token * 16 + slot, ordered by segment and token.
  int32_t* entries;
  int32_t* segment_start;      // [segments + 1] into entries
  int32_t* segment_item_start; // [segments + 1] into items
  WorkItem* items;             // [block_lists_item_capacity]
  uint32_t* claims;            // [1], initially 0; see UnitRange (rounds.cuh)
  int32_t* chunk_counts;       // workspace [block_lists_chunk_count_size]
};

int block_lists_segments(const AttentionShape& shape, const ListCut& cut);
// Largest number of items that any selection can produce for `kv_heads` KV heads of this shape.
int block_lists_item_capacity(const AttentionShape& shape, const ListCut& cut, int kv_heads);
// Number of elements of `chunk_counts`.
std::size_t block_lists_chunk_count_size(const AttentionShape& shape);

// The number of items is segment_item_start[segments], on the device.
cudaError_t launch_block_lists(const BlockListsParams& params, cudaStream_t stream);

} // namespace nsa::kernels
