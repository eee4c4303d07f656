#include <algorithm>

#include "nsa_model/kernels/common/packed_slots.h"
#include "nsa_model/kernels/compressed_backward/compressed_backward.h"
#include "nsa_model/kernels/fused/schedule.h"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"

// Sizes of scratch buffers, their lifetimes, and their addresses during these.

namespace nsa::kernels {
namespace {

// (Token, slot) pairs of the largest round.
std::size_t most_pairs(const AttentionShape& shape, const SelectedPlan& plan, Pass pass) {
  int rows = 0;
  for (int i = 0; plan.listed && i < plan.rounds(shape); ++i) {
    const ListRound round = plan.round(shape, i);
    if (pass == Pass::kForward) rows = std::max(rows, round.listed_rows());
    for (int j = 0; pass == Pass::kBackward && j < backward_rounds(round, plan.round_rows); ++j)
      rows = std::max(rows, backward_round(round, j, plan.round_rows).listed_rows());
  }
  return static_cast<std::size_t>(rows) * kSlots;
}

int64_t first_token_tiles(const Schedule& schedule) {
  const AttentionCall& call = schedule.call;
  const auto tiles = [&](const BesideKvHeads& beside) {
    return range_backward_tiles(call.shape, KeyRange::kWindow, kCausal, schedule.plan.first_tokens,
                                beside, call.multiprocessors);
  };
  return std::max(tiles({}), tiles(schedule.plan.beside));
}

int64_t portable_units(const AttentionCall& call, const SelectedPlan& plan) {
  constexpr KeyRange kRanges[] = {KeyRange::kCompressed, KeyRange::kBlocks, KeyRange::kWindow};
  int64_t units = 0;
  for (int branch = 0; branch < kBranches; ++branch)
    if (call.on[branch] && !(branch == kSelected && plan.listed))
      units = std::max(units, portable::key_gradient_units(call.shape, kRanges[branch]));
  return units;
}

void extend(Lifetime& life, int node) {
  if (life.first < 0) life.first = node;
  life.last = std::max(life.last, node);
}

} // namespace

std::size_t scratch_bytes(const Schedule& schedule, Buffer buffer) {
  const AttentionShape& shape = schedule.call.shape;
  const SelectedPlan& plan = schedule.plan;
  const auto pairs = [&] { return most_pairs(shape, plan, schedule.pass); };
  const std::size_t row =
      static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.head_dim);
  const auto units = [&](int64_t count) { // dK and dV of a block
    return static_cast<std::size_t>(count) * 2 * kBlock * static_cast<std::size_t>(shape.head_dim) *
           sizeof(float);
  };
  switch (buffer) {
  case Buffer::kScores:
    return schedule.call.score_bytes;
  case Buffer::kPartialOut:
  case Buffer::kPartialDq:
    return pairs() * row * sizeof(__nv_bfloat16);
  case Buffer::kPartialLse:
    return pairs() * head_count_floats(shape) * sizeof(float);
  case Buffer::kPackedOut:
    return pairs() / kSlots * static_cast<std::size_t>(plan.slots()) * sizeof(PackedOut);
  case Buffer::kCompressedStatistics:
  case Buffer::kSelectedStatistics:
  case Buffer::kSlidingStatistics:
    return statistics_floats(shape) * sizeof(float);
  case Buffer::kFirstTokenDq:
    return query_elements(shape) * sizeof(__nv_bfloat16);
  case Buffer::kPooledKeyDk:
  case Buffer::kPooledKeyDv:
    return compressed_elements(shape) * sizeof(float);
  case Buffer::kFirstTokenPartial:
    return units(first_token_tiles(schedule));
  case Buffer::kCompressedPartial:
    if (schedule.call.has_compressed_backward())
      return units(compressed_backward_tiles(shape, schedule.call.multiprocessors));
    return units(range_backward_tiles(shape, KeyRange::kCompressed, 0, shape.sequence, {},
                                      schedule.call.multiprocessors));
  case Buffer::kListPartial:
    return units(block_lists_item_capacity(shape, plan.cut, plan.round(shape, 0).kv_heads));
  case Buffer::kKeyBounds:
    return compressed_elements(shape) / static_cast<std::size_t>(shape.head_dim) * sizeof(float2);
  case Buffer::kQuerySums:
    return static_cast<std::size_t>(
               compressed_backward_sums(shape, schedule.call.multiprocessors)) *
           sizeof(int32_t);
  case Buffer::kUnitPartial:
    return units(portable_units(schedule.call, plan));
  case Buffer::kUnitStarts:
    return (static_cast<std::size_t>(block_lists_segments(shape, portable::whole_lists(shape))) +
            1) *
           sizeof(int32_t);
  default:
    return 0;
  }
}

std::array<Lifetime, kBuffers> lifetimes_of(const Schedule& schedule) {
  std::array<Lifetime, kBuffers> lives = {};
  // Buffers that the side stream has used since the main stream last waited for it.
  std::array<bool, kBuffers> beside = {};
  const auto end_beside = [&](int node) {
    for (std::size_t i = 0; i < kBuffers; ++i)
      if (beside[i]) extend(lives[i], node);
    beside = {};
  };
  for (int i = 0; i < static_cast<int>(schedule.nodes.size()); ++i) {
    const Node& node = schedule.nodes[static_cast<std::size_t>(i)];
    const bool side = node.stream == Stream::kSide;
    const bool joins = !side && std::any_of(node.waits.begin(), node.waits.end(),
                                            [](Wait wait) { return wait.until == Until::kDone; });
    if (joins) end_beside(i);
    for (const Use& use : node.uses) {
      const auto buffer = static_cast<std::size_t>(use.buffer);
      extend(lives[buffer], i);
      if (side) beside[buffer] = true;
    }
  }
  end_beside(static_cast<int>(schedule.nodes.size()));
  return lives;
}

ScratchLayout lay_out(const Schedule& schedule) {
  ScratchLayout layout;
  const std::array<Lifetime, kBuffers> lives = lifetimes_of(schedule);
  for (auto i = static_cast<std::size_t>(kFirstScratch); i < kBuffers; ++i) {
    const Lifetime& life = lives[i];
    if (life.first < 0) continue;
    const ScratchPart part = life.last < schedule.lists_begin     ? ScratchPart::kStart
                             : life.first >= schedule.lists_begin ? ScratchPart::kLists
                                                                  : ScratchPart::kKept;
    std::size_t& used = layout.bytes[static_cast<std::size_t>(part)];
    const std::size_t bytes = scratch_bytes(schedule, static_cast<Buffer>(i));
    layout.places[i] = {part, used, bytes};
    used += aligned(bytes);
  }
  return layout;
}

std::size_t ScratchLayout::all() const {
  return bytes[static_cast<std::size_t>(ScratchPart::kKept)] +
         std::max(bytes[static_cast<std::size_t>(ScratchPart::kStart)],
                  bytes[static_cast<std::size_t>(ScratchPart::kLists)]);
}

} // namespace nsa::kernels
