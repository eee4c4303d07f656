#pragma once
// Which row of the tensors a row of a round's partial results is: the inverse of PairRows.

#include <cstdint>

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct RoundRow {
  int64_t row; // (batch * sequence + token) * groups + group
  int token;

  // Rows fit 31 bits: as many of 768 bytes would be 1.6 TB.
  __host__ __device__ __forceinline__ RoundRow(const AttentionShape& shape, const ListRound& round,
                                               int64_t pair_row) {
    const auto local = static_cast<uint32_t>(pair_row);
    const auto sequence = static_cast<uint32_t>(shape.sequence);
    const auto groups = static_cast<uint32_t>(shape.groups);
    if (round.lanes == shape.batch * shape.groups) {
      row = pair_row;
      token = static_cast<int>(local / groups % sequence);
    } else {
      const uint32_t lane = static_cast<uint32_t>(round.first_lane) + local / sequence;
      token = static_cast<int>(local % sequence);
      row = (static_cast<int64_t>(lane / groups) * shape.sequence + token) * shape.groups +
            lane % groups;
    }
  }
};

} // namespace nsa::kernels
