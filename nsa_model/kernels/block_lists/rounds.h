#pragma once
// Which KV heads, (batch, group) pairs, the selected branch processes together. So partial results
// of (token, slot) pairs are kept for only some of them at a time. The forward's rounds are whole
// KV heads. The backward's partial results are larger, so it divides each of those into its own
// rounds. Pure functions, any thread.

#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// (Token, group) rows in a round of the forward; a single KV head may have more. A pair takes 512
// bytes with six heads of 64 dimensions, and 1,568 with 128. A round of the latter has half the
// rows.
inline constexpr int kRoundRows = 65536;
constexpr int round_rows_of(const AttentionShape& shape) {
  return shape.head_dim == kHeadDim ? kRoundRows : kRoundRows / 2;
}
// Listed rows in a round of the backward, 768 bytes a pair for six heads. That is at most 384 MiB,
// and twice as much for 128 dimensions. 32,768 tokens need one or two rounds. A KV head with more
// rows is cut into sections.
inline constexpr int kBackwardRoundRows = 32768;
// More sections would cost more memory than they save. Each block of keys has a unit of dK and dV
// in every section that sees it.
inline constexpr int kMostSections = 7;
static_assert(kBackwardRoundRows % kListChunk == 0);

// `round_rows` is that of the backward, at least kBackwardRoundRows.
ListCut list_cut(const AttentionShape& shape, int first_token, int round_rows = kBackwardRoundRows);

inline constexpr int kEverySection = -1;
struct ListRound {
  int first_kv_head = 0; // batch * groups + group
  int kv_heads = 0;
  ListCut cut;
  int section = kEverySection; // a section of one KV head, or all sections

  __host__ __device__ constexpr int first_list() const {
    return first_kv_head * cut.sections + (section == kEverySection ? 0 : section);
  }
  __host__ __device__ constexpr int lists() const {
    return section == kEverySection ? kv_heads * cut.sections : 1;
  }
  // Listed tokens of each KV head.
  __host__ __device__ constexpr int first_token() const {
    return section == kEverySection ? cut.first_token : cut.begin(section);
  }
  __host__ __device__ constexpr int past_token() const {
    return section == kEverySection ? cut.sequence : cut.end(section);
  }
  // Listed tokens of all KV heads: the rows of the buffer for partial results.
  __host__ __device__ constexpr int listed_rows() const {
    return kv_heads * (past_token() - first_token());
  }
};
constexpr ListRound all_kv_heads(const AttentionShape& shape) {
  return {0, shape.batch * shape.groups, {.sequence = shape.sequence}};
}

// The forward's rounds. The last one may have fewer KV heads.
int list_rounds(const AttentionShape& shape);
ListRound list_round(const AttentionShape& shape, const ListCut& cut, int index);

// The backward's rounds within one round of the forward.
int backward_rounds(const ListRound& round, int round_rows = kBackwardRoundRows);
ListRound backward_round(const ListRound& round, int index, int round_rows = kBackwardRoundRows);

} // namespace nsa::kernels
