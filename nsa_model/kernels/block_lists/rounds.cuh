#pragma once
// A round's units of work, and the rows of its partial results.

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/block_lists/rounds.h"

namespace nsa::kernels {

// The units [begin, end) of a round. CTA c of `ctas` begins with unit begin + c. For each unit that
// it processes, it increments a counter. The old value is its claim and determines its next unit,
// if there is one. A launch makes one claim for each unit. So the counter wraps to 0 after
// last_claim() (atomicInc) and serves the next launch. Example: with 5 units and 2 CTAs, claims 0,
// 1, 2 are units 2, 3, 4, and claims 3 and 4 are no units.
struct UnitRange {
  int begin;
  int end;
  int joined = 0; // units after the listed ones; see JoinedBlocks

  // The unit of a claim; it exists only if it is below end + joined. The first unit of CTA c is
  // that of claim c - ctas.
  __host__ __device__ int claimed(int claim, int ctas) const { return begin + ctas + claim; }
  __host__ __device__ uint32_t last_claim() const {
    return static_cast<uint32_t>(end - begin + joined - 1);
  }
};

#ifdef __CUDACC__
// Whole warps call it.
__device__ __forceinline__ UnitRange units_of(const int32_t* segment_item_start,
                                              const ListRound& round, int blocks) {
  const int32_t* start = segment_item_start + round.first_list() * blocks;
  return {__shfl_sync(~0u, start[0], 0), __shfl_sync(~0u, start[round.lists() * blocks], 0)};
}
#endif

// Tokens after the first 1,024 use all of their 16 slots. In our own selection, slots 0, 14 and 15
// are always block 0, the block before the token's own, and its own. If these blocks are joined,
// the forward visits them in separate units of kJoinedTokens neighbouring tokens each. It writes
// one partial result for the three blocks, in slot 0. The listed units omit these pairs: a block's
// list begins with its own tokens and those of the next block.
inline constexpr int kJoinedTokens = 32;
inline constexpr int kJoinedParts = 3;
inline constexpr int kJoinedSlots = kSlots - kJoinedParts + 1; // slots that are then written
static_assert(kBlock % kJoinedTokens == 0, "a unit's tokens are of one block");
struct JoinedBlocks {
  int first_token = 0; // first listed token, the begin of a block; 0: nothing is joined
  int sequence = 0;

  __host__ __device__ int units_of_a_kv_head() const {
    return first_token == 0 ? 0 : (sequence - first_token + kJoinedTokens - 1) / kJoinedTokens;
  }
  // The first token of a KV head's unit, which never spans two blocks, and the block of one of its
  // parts.
  __host__ __device__ int token_of(int unit) const { return first_token + unit * kJoinedTokens; }
  static __host__ __device__ int block_of(int token, int part) {
    return part == 0 ? 0 : token / kBlock + part - (kJoinedParts - 1);
  }
  // Number of omitted entries at the begin of a block's list for the tokens [begin, end): the
  // listed tokens of the block and of the next one. For block 0 all entries are omitted.
  __host__ __device__ int left_out(int block, int begin, int end) const {
    if (block == 0) return sequence;
    const int own = block * kBlock;
    const int from = own > begin ? own : begin;
    const int past = own + 2 * kBlock < end ? own + 2 * kBlock : end;
    return past > from ? past - from : 0;
  }
};

// Rows of partial results; only listed tokens have them. If one round contains every KV head, the
// order is (batch, token, group), as in the tensors. Otherwise it is (KV head of the round, token).
struct PairRows {
  int first; // row of the KV head's token 0, if it existed
  int step;  // distance to its next token

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
