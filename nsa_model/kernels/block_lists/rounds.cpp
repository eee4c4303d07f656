#include "nsa_model/kernels/block_lists/rounds.h"

#include <algorithm>

namespace nsa::kernels {
namespace {

constexpr int divide_up(int value, int by) {
  return (value + by - 1) / by;
}

int kv_head_count(const AttentionShape& shape) {
  return shape.batch * shape.groups;
}
int kv_heads_per_round(const AttentionShape& shape) {
  return std::clamp(round_rows_of(shape) / shape.sequence, 1, kv_head_count(shape));
}

// KV heads per round: the fewest possible rounds share the KV heads about equally.
int kv_heads_per_backward_round(const ListRound& round, int round_rows) {
  const int listed = std::max(1, round.cut.sequence - round.cut.first_token);
  const int most = std::clamp(round_rows / listed, 1, round.kv_heads);
  return divide_up(round.kv_heads, divide_up(round.kv_heads, most));
}

} // namespace

ListCut list_cut(const AttentionShape& shape, int first_token, int round_rows) {
  ListCut cut = {.sequence = shape.sequence, .first_token = first_token};
  const int listed = shape.sequence - first_token;
  if (listed <= std::max(round_rows, kBackwardRoundRows)) return cut;
  const int chunks = divide_up(shape.sequence, kListChunk) - first_token / kListChunk;
  cut.chunks = divide_up(chunks, std::min(divide_up(listed, kBackwardRoundRows), kMostSections));
  cut.sections = divide_up(chunks, cut.chunks); // no section is empty
  return cut;
}

int list_rounds(const AttentionShape& shape) {
  return divide_up(kv_head_count(shape), kv_heads_per_round(shape));
}

ListRound list_round(const AttentionShape& shape, const ListCut& cut, int index) {
  const int first = index * kv_heads_per_round(shape);
  return {first, std::min(kv_heads_per_round(shape), kv_head_count(shape) - first), cut};
}

int backward_rounds(const ListRound& round, int round_rows) {
  if (round.cut.sections > 1) return round.kv_heads * round.cut.sections;
  return divide_up(round.kv_heads, kv_heads_per_backward_round(round, round_rows));
}

ListRound backward_round(const ListRound& round, int index, int round_rows) {
  const int sections = round.cut.sections;
  if (sections > 1) return {round.first_kv_head + index / sections, 1, round.cut, index % sections};
  const int kv_heads = kv_heads_per_backward_round(round, round_rows);
  const int first = index * kv_heads;
  return {round.first_kv_head + first, std::min(kv_heads, round.kv_heads - first), round.cut};
}

} // namespace nsa::kernels
