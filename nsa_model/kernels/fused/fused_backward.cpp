#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/fused/fused.h"
#include "nsa_model/kernels/fused/keys_beside.h"
#include "nsa_model/kernels/fused/schedule.h"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/portable/portable.h"
#include "nsa_model/kernels/tile_backward/tile_backward.h"

// The backward's order of launches, by the steps of BackwardWorkspace.

namespace nsa::kernels {
namespace {

struct Interval {
  KeyRange range;
  int window;
  int token_end;
};

class Backward {
public:
  Backward(const FusedInputs& inputs, const FusedSaved& saved, const FusedGradients& gradients,
           cudaStream_t stream)
      : inputs_(inputs), shape_(inputs.shape), saved_(saved), gradients_(gradients),
        stream_(stream), schedule_(inputs), workspace_(inputs, schedule_),
        list_carver_(saved.lists), lists_(inputs.shape, list_carver_), beside_(inputs, schedule_) {}

  cudaError_t run(const ScratchOf& scratch) {
    const auto place = [&](ScratchPart part) {
      const std::size_t bytes = workspace_.bytes(part);
      if (bytes > 0) workspace_.place(part, scratch(part, bytes));
    };
    place(ScratchPart::kKept);
    place(ScratchPart::kStart);
    run_intervals();
    if (run_.error() != cudaSuccess) return run_.error();
    place(ScratchPart::kLists);
    for (int index = 0; index < schedule_.rounds(shape_); ++index) {
      const ListRound round = schedule_.round(shape_, index);
      if (schedule_.listed) {
        list_rounds_of(round);
      } else {
        add_queries(round);
      }
      if (is_on(inputs_, kSelected)) sum_keys(round);
    }
    if (beside_.takes(kSliding)) {
      run_.then([&] { return beside_.finish(key_params(kSliding), stream_); });
    }
    return run_.error();
  }

private:
  BlockBackwardTensors tensors_of(int branch) const {
    return {.q = inputs_.q,
            .k = inputs_.k[branch],
            .v = inputs_.v[branch],
            .d_out = gradients_.d_out,
            .statistics = workspace_.statistics[branch]};
  }
  // Of a branch, or of the selected one's first tokens.
  Interval interval_of(int branch) const {
    const bool selected = branch == kSelected;
    return {range_of(inputs_, branch), selected ? kCausal : kWindow,
            selected ? schedule_.prefix : shape_.sequence};
  }
  const int32_t* mask_indices() const {
    return schedule_.prefix > kDensePrefix ? saved_.indices : nullptr;
  }

  // What the query-major kernels do, and dK and dV of their tokens but for what runs beside lists.
  void run_intervals() {
    start_queries();
    if (schedule_.prefix > 0) {
      interval_keys(kSelected);
      interval_queries(kSelected);
    }
    if (is_on(inputs_, kSliding)) {
      if (!beside_.takes(kSliding)) interval_keys(kSliding);
      interval_queries(kSliding);
    }
    if (is_on(inputs_, kCompressed)) {
      interval_keys(kCompressed);
      interval_queries(kCompressed);
      sum_compressed_keys();
    }
  }

  // Statistics of every row, and with them dQ of the branches that one walk takes together.
  void start_queries() {
    BackwardPrepareParams prepare = {
        .shape = shape_, .d_out = gradients_.d_out, .gates = inputs_.gates};
    for (int branch = 0; branch < kBranches; ++branch) {
      const bool on = is_on(inputs_, branch);
      prepare.branch_out[branch] = on ? saved_.branch_out[branch] : nullptr;
      prepare.branch_lse[branch] = on ? saved_.branch_lse[branch] : nullptr;
      prepare.statistics[branch] = on ? workspace_.statistics[branch] : nullptr;
    }
    prepare.indices = mask_indices();
    prepare.d_gates = gradients_.d_gates;
    if (!joins_dq(inputs_)) {
      run_.then([&] { return launch_backward_prepare(prepare, stream_); });
      return;
    }
    run_.then([&] {
      return launch_joint_backward({.shape = shape_,
                                    .window = tensors_of(kSliding),
                                    .compressed = tensors_of(kCompressed),
                                    .scale = inputs_.scale,
                                    .prepare = prepare,
                                    .selected = tensors_of(kSelected),
                                    .selected_tokens = schedule_.prefix,
                                    .indices = mask_indices(),
                                    .d_q = gradients_.d_q},
                                   stream_);
    });
  }

  // dQ of a branch in which keys form an interval, but for what the joint walk gives.
  void interval_queries(int branch) {
    if (joins_dq(inputs_)) return;
    // Alone, d_q of the first tokens has its places before list backward, which takes what its
    // longest tiles leave.
    const bool ahead = is_alone(inputs_) && beside_.takes(branch);
    if (ahead) run_.then([&] { return beside_.fork(stream_); });
    run_.then([&] {
      const Interval interval = interval_of(branch);
      const bool apart = branch == kSelected && workspace_.selected_dq != nullptr;
      return launch_tile_backward({.shape = shape_,
                                   .range = interval.range,
                                   .window = interval.window,
                                   .token_end = interval.token_end,
                                   .tensors = tensors_of(branch),
                                   .scale = inputs_.scale,
                                   .indices = saved_.indices,
                                   .d_q = apart ? workspace_.selected_dq : gradients_.d_q,
                                   .launched = ahead ? beside_.launched() : nullptr},
                                  ahead ? beside_.stream() : stream_);
    });
    if (ahead) run_.then([&] { return cudaStreamWaitEvent(stream_, beside_.launched()); });
  }

  RangeBackwardParams key_params(int branch) const {
    const Interval interval = interval_of(branch);
    const bool direct = branch == kSliding; // a column of the window is one unit
    return {.shape = shape_,
            .range = interval.range,
            .window = interval.window,
            .token_end = interval.token_end,
            .tensors = tensors_of(branch),
            .scale = inputs_.scale,
            .partial_dkv =
                branch == kSelected ? workspace_.prefix_partial : workspace_.compressed_partial,
            .d_k = direct ? gradients_.d_k[branch] : nullptr,
            .d_v = direct ? gradients_.d_v[branch] : nullptr,
            .beside = beside_.takes(branch) ? beside_.lanes() : BesideLanes{}};
  }
  void interval_keys(int branch) {
    run_.then([&] { return launch_range_backward(key_params(branch), stream_); });
  }

  void sum_compressed_keys() {
    const bool pooled = inputs_.pool_k != nullptr;
    run_.then([&] {
      return launch_sum_blocks({.shape = shape_,
                                .keys = compressed_count(shape_.sequence),
                                .range_partial = workspace_.compressed_partial,
                                .range = KeyRange::kCompressed,
                                .token_end = shape_.sequence,
                                .d_k = pooled ? nullptr : gradients_.d_k[kCompressed],
                                .d_v = pooled ? nullptr : gradients_.d_v[kCompressed],
                                .d_k_fp32 = pooled ? workspace_.d_k_cmp : nullptr,
                                .d_v_fp32 = pooled ? workspace_.d_v_cmp : nullptr},
                               stream_);
    });
    if (!pooled) return;
    // Nothing waits for it: where there is a side stream, in the time of the lists.
    const bool aside = beside_.takes(kSliding);
    if (aside) run_.then([&] { return beside_.fork(stream_); });
    run_.then([&] {
      return pool_backward(inputs_, gradients_, workspace_.d_k_cmp, workspace_.d_v_cmp,
                           aside ? beside_.stream() : stream_);
    });
  }

  // The rounds of list backward of one of the forward's, each with the sum of its dQ.
  void list_rounds_of(const ListRound& whole) {
    const int rounds = backward_rounds(whole, schedule_.round_rows);
    for (int index = 0; index < rounds; ++index) {
      const ListRound round = backward_round(whole, index, schedule_.round_rows);
      const bool forks = beside_.has_more();
      if (forks) run_.then([&] { return beside_.fork(stream_); });
      run_.then([&] {
        return launch_selected_backward({.shape = shape_,
                                         .round = round,
                                         .summed = whole,
                                         .tensors = tensors_of(kSelected),
                                         .entries = lists_.entries,
                                         .segment_item_start = lists_.segment_item_start,
                                         .items = lists_.items,
                                         .claims = lists_.claims,
                                         .scale = inputs_.scale,
                                         .partial_dq = workspace_.partial_dq,
                                         .partial_dkv = workspace_.list_partial,
                                         .launched = forks ? beside_.launched() : nullptr},
                                        stream_);
      });
      if (forks) {
        run_.then([&] { return beside_.piece(key_params(beside_.branch())); });
      }
      add_queries(round);
    }
  }

  // Adds dQ of a round's pairs, and of the selected branch's first tokens where it lies apart, to
  // what the query-major kernels have left in d_q.
  void add_queries(const ListRound& round) {
    const bool apart = workspace_.selected_dq != nullptr;
    if (!schedule_.listed && !apart) return;
    const bool first = round.first_token() == schedule_.prefix || !schedule_.listed;
    MergeQueryGradientParams merge = {.shape = shape_,
                                      .round = round,
                                      .indices = schedule_.listed ? saved_.indices : nullptr,
                                      .from = apart && first ? 0 : round.first_token(),
                                      .first_token = round.first_token(),
                                      .partial_dq = workspace_.partial_dq,
                                      .scale = inputs_.scale,
                                      .addends = {},
                                      .addend_end = {},
                                      .d_q = gradients_.d_q};
    if (!is_alone(inputs_)) {
      merge.addends[kCompressed] = gradients_.d_q; // of whichever branch is on
      merge.addend_end[kCompressed] = shape_.sequence;
    }
    if (apart) {
      merge.addends[kSelected] = workspace_.selected_dq;
      merge.addend_end[kSelected] = schedule_.prefix;
    }
    run_.then([&] { return launch_merge_query_gradient(merge, stream_); });
  }

  // Of the lists' units and of the first tokens'.
  void sum_keys(const ListRound& round) {
    if (beside_.takes(kSelected)) run_.then([&] { return beside_.join(); });
    const int prefix = schedule_.prefix;
    run_.then([&] {
      return launch_sum_blocks(
          {.shape = shape_,
           .round = round,
           .keys = shape_.sequence,
           .list_partial = schedule_.listed ? workspace_.list_partial : nullptr,
           .segment_item_start = lists_.segment_item_start,
           .range_partial = prefix > 0 ? workspace_.prefix_partial : nullptr,
           .range = KeyRange::kWindow,
           .window = kCausal,
           .token_end = prefix,
           .beside = beside_.takes(kSelected) ? beside_.lanes() : BesideLanes{},
           .d_k = gradients_.d_k[kSelected],
           .d_v = gradients_.d_v[kSelected]},
          stream_);
    });
  }

  const FusedInputs& inputs_;
  const AttentionShape& shape_;
  const FusedSaved& saved_;
  const FusedGradients& gradients_;
  const cudaStream_t stream_;
  const Schedule schedule_;
  BackwardWorkspace workspace_;
  Carver list_carver_;
  const Lists lists_;
  KeysBeside beside_;
  Sequence run_;
};

} // namespace

cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, const ScratchOf& scratch,
                                  cudaStream_t stream) {
  if (inputs.tuning.family == KernelFamily::kPortable) {
    const std::size_t bytes = portable::backward_workspace_bytes(inputs.shape);
    return portable::launch_backward(inputs, saved, gradients, scratch(ScratchPart::kKept, bytes),
                                     stream);
  }
  return Backward(inputs, saved, gradients, stream).run(scratch);
}

cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, void* workspace,
                                  cudaStream_t stream) {
  const bool portable = inputs.tuning.family == KernelFamily::kPortable;
  const std::size_t kept = portable ? 0 : fused_backward_part_bytes(inputs, ScratchPart::kKept);
  char* base = static_cast<char*>(workspace);
  return launch_fused_backward(
      inputs, saved, gradients,
      [&](ScratchPart part, std::size_t) -> void* {
        return part == ScratchPart::kKept ? base : base + kept;
      },
      stream);
}

} // namespace nsa::kernels
