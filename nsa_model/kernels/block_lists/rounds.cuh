#pragma once
// A round's units of work, and where its partial results lie.

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/block_lists/rounds.h"

namespace nsa::kernels {

// A round's units, [begin, end). CTA c of `ctas` begins with unit begin + c. For each unit that it
// takes, it increments a counter; the old value is its claim, which names its next unit, if any. A
// launch makes one claim a unit, so the counter wraps to 0 behind last_claim() (atomicInc) and
// serves the next launch. Example: 5 units, 2 CTAs. Claims 0, 1, 2 are units 2, 3, 4; 3 and 4 none.
struct UnitRange {
  int begin;
  int end;
  int joined = 0; // units behind the listed ones, see JoinedBlocks

  // The unit of a claim; none if not below end + joined. What CTA c begins with is claim c - ctas.
  __host__ __device__ int claimed(int claim, int ctas) const { return begin + ctas + claim; }
  __host__ __device__ uint32_t last_claim() const {
    return static_cast<uint32_t>(end - begin + joined - 1);
  }
};

#ifdef __CUDACC__
// Whole warps.
__device__ __forceinline__ UnitRange units_of(const int32_t* segment_item_start,
                                              const ListRound& round, int blocks) {
  const int32_t* start = segment_item_start + round.first_list() * blocks;
  return {__shfl_sync(~0u, start[0], 0), __shfl_sync(~0u, start[round.lists() * blocks], 0)};
}
#endif

// Tokens behind the first 1,024 have all of their 16 slots, and of what the selection chose slots
// 0, 14 and 15 are always block 0, the block before the token's own and the own one. Where these
// are joined, the forward visits them in units of their own, kJoinedTokens neighbouring tokens
// each, and leaves one partial result for the three, in slot 0. They are left out of the listed
// units: a block's list begins with its own tokens and those of the next block.
inline constexpr int kJoinedTokens = 32;
inline constexpr int kJoinedParts = 3;
inline constexpr int kJoinedSlots = kSlots - kJoinedParts + 1; // that are then written
static_assert(kBlock % kJoinedTokens == 0, "a unit's tokens are of one block");
struct JoinedBlocks {
  int first_token = 0; // that is listed, a whole block's; 0: nothing is joined
  int sequence = 0;

  __host__ __device__ int units_of_a_kv_head() const {
    return first_token == 0 ? 0 : (sequence - first_token + kJoinedTokens - 1) / kJoinedTokens;
  }
  // The first token of a KV head's unit, which is never of two blocks, and the block of its part.
  __host__ __device__ int token_of(int unit) const { return first_token + unit * kJoinedTokens; }
  static __host__ __device__ int block_of(int token, int part) {
    return part == 0 ? 0 : token / kBlock + part - (kJoinedParts - 1);
  }
  // Listed tokens of a block and of the next, with which the block's list of the tokens
  // [begin, end) begins; all, of block 0.
  __host__ __device__ int left_out(int block, int begin, int end) const {
    if (block == 0) return sequence;
    const int own = block * kBlock;
    const int from = own > begin ? own : begin;
    const int past = own + 2 * kBlock < end ? own + 2 * kBlock : end;
    return past > from ? past - from : 0;
  }
};

// Rows of partial results, of listed tokens only: (batch, token, group), as in the tensors, where
// one round takes every KV head, and (KV head of the round, token) otherwise.
struct PairRows {
  int first; // where the KV head's token 0 would be
  int step;  // to its next token

  __host__ __device__ PairRows(const AttentionShape& shape, const ListRound& round, int kv_head) {
    const int listed = round.past_token() - round.first_token();
    step = round.kv_heads == shape.batch * shape.groups ? shape.groups : 1;
    const int before = step == 1 ? kv_head - round.first_kv_head : kv_head / shape.groups;
    first = (before * listed - round.first_token()) * step;
    if (step > 1) first += kv_head % shape.groups;
  }
  __host__ __device__ int row(int token) const { return first + token * step; }
};

} // namespace nsa::kernels
