#pragma once
// A round's units of work, and where its partial results lie.

#include "nsa_model/kernels/block_lists/block_lists.h"

namespace nsa::kernels {

// A round's units, [begin, end), of which CTAs claim one after another. CTA c of `ctas` begins with
// unit begin + c, and counts a counter up for every unit that it takes: the number that it finds
// there, its claim, says which unit comes next, if any. So a launch makes as many claims as it has
// units, in whichever order, and a counter that starts at 0 and wraps behind last_claim()
// (atomicInc) is 0 again when the last is made: for the next launch, whatever that one's units.
struct UnitRange {
  int begin;
  int end;

  // The unit of a claim; none if not below end. What CTA c begins with is claim c - ctas.
  __host__ __device__ int claimed(int claim, int ctas) const { return begin + ctas + claim; }
  __host__ __device__ uint32_t last_claim() const { return static_cast<uint32_t>(end - begin - 1); }
};

#ifdef __CUDACC__
// Whole warps.
__device__ __forceinline__ UnitRange units_of(const int32_t* segment_item_start,
                                              const ListRound& round, int blocks) {
  const int32_t* start = segment_item_start + round.first_lane * blocks;
  return {__shfl_sync(~0u, start[0], 0), __shfl_sync(~0u, start[round.lanes * blocks], 0)};
}
#endif

// Rows of partial results: (batch, token, group), as in the tensors, where one round takes
// everything, and (lane of the round, token) otherwise.
struct PairRows {
  int first; // of the lane's token 0
  int step;  // to its next token

  __host__ __device__ PairRows(const AttentionShape& shape, const ListRound& round, int lane) {
    const bool whole = round.lanes == shape.batch * shape.groups;
    first = whole ? lane / shape.groups * shape.sequence * shape.groups + lane % shape.groups
                  : (lane - round.first_lane) * shape.sequence;
    step = whole ? shape.groups : 1;
  }
  __host__ __device__ int row(int token) const { return first + token * step; }
};

} // namespace nsa::kernels
