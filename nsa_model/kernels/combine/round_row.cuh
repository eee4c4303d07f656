#pragma once
// Maps a row that a merge visits to its row in the tensors and to its partial results.

#include <cstdint>

#include "nsa_model/kernels/block_lists/rounds.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// The tokens [from, past_token) of every KV head of a round, in the order of PairRows. The index
// runs from 0 to visited_rows().
struct RoundRow {
  int64_t row;      // (batch * sequence + token) * groups + group
  int64_t pair_row; // row of PairRows, if the token is listed
  int token;

  // Row numbers fit 31 bits: so many rows of 768 bytes would take 1.6 TB.
  __host__ __device__ __forceinline__ RoundRow(const AttentionShape& shape, const ListRound& round,
                                               int from, int64_t index) {
    const auto visited = static_cast<uint32_t>(round.past_token() - from);
    const auto groups = static_cast<uint32_t>(shape.groups);
    const bool whole = round.kv_heads == shape.batch * shape.groups;
    const uint32_t step = whole ? groups : 1;
    const uint32_t token_index = static_cast<uint32_t>(index) / step;
    // Number of batches before it, or of the round's KV heads.
    const uint32_t before = token_index / visited;
    token = from + static_cast<int>(token_index % visited);
    const uint32_t group_of_step = static_cast<uint32_t>(index) % step;
    const uint32_t kv_head = whole ? before * groups + group_of_step
                                   : static_cast<uint32_t>(round.first_kv_head) + before;
    row = (static_cast<int64_t>(kv_head / groups) * shape.sequence + token) * shape.groups +
          kv_head % groups;
    const int64_t listed = round.past_token() - round.first_token();
    pair_row = (before * listed + token - round.first_token()) * step + group_of_step;
  }
};
constexpr int64_t visited_rows(const ListRound& round, int from) {
  return int64_t{round.kv_heads} * (round.past_token() - from);
}

} // namespace nsa::kernels
