#include "nsa_model/kernels/fused/schedule.h"

#include <algorithm>

#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels {
namespace {

// Lists cost their launches and partial results once there are any: a sequence that would have few
// of them is taken whole. Of longer ones so many tokens under masks were fastest, at 2,048 as at
// 16,384 tokens a sequence (lab "query-major-border").
constexpr int kWholeUpTo = 1536;
constexpr int kMaskedBesideLists = 1280;

// (Token, slot) pairs of the largest of the rounds.
std::size_t most_pairs(const AttentionShape& shape, const Schedule& schedule, bool backward) {
  int rows = 0;
  for (int i = 0; schedule.listed && i < schedule.rounds(shape); ++i) {
    const ListRound round = schedule.round(shape, i);
    if (!backward) rows = std::max(rows, round.listed_rows());
    for (int j = 0; backward && j < backward_rounds(round, schedule.round_rows); ++j)
      rows = std::max(rows, backward_round(round, j, schedule.round_rows).listed_rows());
  }
  return static_cast<std::size_t>(rows) * kSlots;
}

} // namespace

int query_major_tokens(const AttentionShape& shape, const FusedTuning& tuning) {
  const int fastest = shape.sequence <= kWholeUpTo ? kWholeUpTo : kMaskedBesideLists;
  const int wanted = tuning.query_major_tokens > 0 ? tuning.query_major_tokens : fastest;
  const int most = shape.heads == kHeadsPerGroup ? kMostMaskedTokens : kDensePrefix;
  return std::min({shape.sequence, wanted, most});
}

Schedule::Schedule(const FusedInputs& inputs) {
  const AttentionShape& shape = inputs.shape;
  if (!is_on(inputs, kSelected)) return;
  // Given blocks need not be every causal one.
  if (inputs.given_indices == nullptr) prefix = query_major_tokens(shape, inputs.tuning);
  listed = prefix < shape.sequence;
  packed = inputs.tuning.partial_out == PartialFormat::kPacked && shape.heads == kHeadsPerGroup;
  // Then every listed token has 16 blocks, and lists begin with a whole block.
  joined = packed && prefix >= kDensePrefix && prefix % kBlock == 0;
  // A branch alone leaves room for the fewest rounds.
  round_rows =
      std::max(inputs.tuning.round_rows, is_alone(inputs) ? kRoundRows : kBackwardRoundRows);
  cut = list_cut(shape, prefix, round_rows);
}

int Schedule::all_backward_rounds(const AttentionShape& shape) const {
  int count = 0;
  for (int i = 0; listed && i < rounds(shape); ++i)
    count += backward_rounds(round(shape, i), round_rows);
  return std::max(count, 1);
}

KeyRange range_of(const FusedInputs& inputs, int branch) {
  if (branch == kCompressed) return KeyRange::kCompressed;
  return branch == kSelected && Schedule(inputs).prefix > kDensePrefix ? KeyRange::kBlocks
                                                                       : KeyRange::kWindow;
}

bool is_alone(const FusedInputs& inputs) {
  return is_on(inputs, kCompressed) + is_on(inputs, kSelected) + is_on(inputs, kSliding) == 1;
}
bool joins_dq(const FusedInputs& inputs) {
  return is_on(inputs, kSliding) && is_on(inputs, kCompressed);
}

// The more, the longer that sum takes, with the listed tokens of a lane (sequence and group), and
// the less they take, with the square of the first tokens. Measured (lab "joined-blocks"): 11 of 32
// lanes at 2,048 tokens, all from 4,096 on.
BesideLanes first_tokens_beside(const FusedInputs& inputs, const Schedule& schedule) {
  const int ctas = inputs.tuning.beside_ctas;
  if (is_on(inputs, kSliding) || !schedule.listed || schedule.prefix == 0 || ctas <= 0) return {};
  constexpr double kOfMultiprocessor = 12;
  const double prefix = schedule.prefix;
  const double share =
      kOfMultiprocessor * ctas * (inputs.shape.sequence - prefix) / (prefix * prefix);
  return {.lanes =
              static_cast<int>(std::min(share, 1.0) * inputs.shape.batch * inputs.shape.groups),
          .ctas = ctas};
}

ForwardWorkspace::ForwardWorkspace(const FusedInputs& inputs, const Schedule& schedule,
                                   void* base) {
  const AttentionShape& shape = inputs.shape;
  const std::size_t pairs = most_pairs(shape, schedule, false);
  Carver carver(base);
  if (schedule.packed) {
    packed = carver.take<PackedOut>(pairs / kSlots * static_cast<std::size_t>(schedule.slots()));
  } else {
    partial_out =
        carver.take<__nv_bfloat16>(pairs * static_cast<std::size_t>(shape.heads * kHeadDim));
    partial_lse = carver.take<float>(pairs * head_count_floats(shape));
  }
  bytes = carver.used();
  if (is_on(inputs, kSelected) && chooses_blocks(inputs)) {
    scores = static_cast<float*>(base);
    bytes = std::max(bytes, selection_score_bytes(shape));
  }
}

BackwardWorkspace::BackwardWorkspace(const FusedInputs& inputs, const Schedule& schedule) {
  const AttentionShape& shape = inputs.shape;
  const int prefix = schedule.prefix;
  for (int branch = 0; branch < kBranches; ++branch) {
    if (is_on(inputs, branch)) // and one row behind the last
      statistics_[branch] = (group_rows(shape) + 1) * 2 * head_count_floats(shape);
  }
  if (prefix > 0 && !joins_dq(inputs) && !is_alone(inputs)) selected_dq_ = query_elements(shape);
  const auto units = [](int64_t count) { return static_cast<std::size_t>(count) * kUnitFloats; };
  if (is_on(inputs, kCompressed)) {
    compressed_keys_ = compressed_elements(shape);
    compressed_ = units(range_backward_tiles(shape, KeyRange::kCompressed, 0, shape.sequence));
  }
  if (prefix > 0) {
    const auto tiles = [&](const BesideLanes& beside) {
      return range_backward_tiles(shape, KeyRange::kWindow, kCausal, prefix, beside);
    };
    prefix_ = units(std::max(tiles({}), tiles(first_tokens_beside(inputs, schedule))));
  }
  if (schedule.listed) {
    lists_ = units(block_lists_item_capacity(shape, schedule.cut, schedule.round(shape, 0).lanes));
    pairs_ = most_pairs(shape, schedule, true) * static_cast<std::size_t>(shape.heads * kHeadDim);
  }
}

void BackwardWorkspace::carve(ScratchPart part, Carver& carver) {
  const auto take = [&]<typename T>(T*& buffer, std::size_t count) {
    buffer = count == 0 ? nullptr : carver.take<T>(count);
  };
  switch (part) {
  case ScratchPart::kKept:
    take(statistics[kSelected], statistics_[kSelected]);
    take(statistics[kSliding], statistics_[kSliding]);
    take(selected_dq, selected_dq_);
    take(d_k_cmp, compressed_keys_);
    take(d_v_cmp, compressed_keys_);
    take(prefix_partial, prefix_);
    break;
  case ScratchPart::kStart:
    take(statistics[kCompressed], statistics_[kCompressed]);
    take(compressed_partial, compressed_);
    break;
  case ScratchPart::kLists:
    take(list_partial, lists_);
    take(partial_dq, pairs_);
    break;
  }
}

} // namespace nsa::kernels
