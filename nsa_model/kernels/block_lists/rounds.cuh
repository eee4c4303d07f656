#pragma once
// A round's units of work, and where its partial results lie.

#include "nsa_model/kernels/block_lists/block_lists.h"

namespace nsa::kernels {

#ifdef __CUDACC__
// Units of a round that one CTA takes: first, first + gridDim.x, ... below end.
struct UnitRange {
  int first;
  int end;

  __device__ UnitRange(const int32_t* segment_item_start, const ListRound& round, int blocks) {
    const int32_t* start = segment_item_start + round.first_lane * blocks;
    first = __shfl_sync(~0u, start[0], 0) + static_cast<int>(blockIdx.x);
    end = __shfl_sync(~0u, start[round.lanes * blocks], 0);
  }
};
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
