#include "nsa_model/kernels/fused/fused.h"

#include <algorithm>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/fused/side_stream.h"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/portable/portable.h"
#include "nsa_model/kernels/selected_forward/selected_forward.h"
#include "nsa_model/kernels/selection/selection.h"
#include "nsa_model/kernels/tile_backward/tile_backward.h"
#include "nsa_model/kernels/tile_forward/tile_forward.h"

namespace nsa::kernels {
namespace {

enum BranchIndex { kCompressed = 0, kSelected = 1, kSliding = 2 };

// A window wider than any sequence: plain causal attention.
constexpr int kCausal = 2 * kMaxSequence;

// Lists cost their launches and partial results once there are any: a sequence that would have few
// of them is taken whole. Of longer ones so many tokens under masks were fastest, at 2,048 as at
// 16,384 tokens a sequence (lab "query-major-border").
constexpr int kWholeUpTo = 1536;
constexpr int kMaskedBesideLists = 1280;

std::size_t pair_elements(const AttentionShape& shape) { // of a (token, slot)
  return static_cast<std::size_t>(shape.heads) * kHeadDim;
}
// (Token, slot) pairs of the largest round.
std::size_t round_pairs(const AttentionShape& shape) {
  return static_cast<std::size_t>(list_round(shape, 0).lanes) * shape.sequence * kSlots;
}

// Of the first tokens' dK and dV those that the sum of dQ is to hide: the more, the longer that sum
// takes, with the listed tokens of a lane (sequence and group), and the less they take, with the
// square of the first tokens. Measured (lab "joined-blocks"): 11 of 32 lanes at 2,048 tokens, all
// from 4,096 on.
BesideLanes first_tokens_beside(const AttentionShape& shape, const FusedTuning& tuning,
                                int prefix) {
  if (prefix <= 0 || prefix >= shape.sequence || tuning.beside_ctas <= 0) return {};
  constexpr double kOfMultiprocessor = 12;
  const double share = kOfMultiprocessor * tuning.beside_ctas * (shape.sequence - prefix) /
                       (static_cast<double>(prefix) * prefix);
  return {.lanes = static_cast<int>(std::min(share, 1.0) * shape.batch * shape.groups),
          .ctas = tuning.beside_ctas};
}

struct ForwardWorkspace {
  __nv_bfloat16* partial_out = nullptr; // the two, or packed
  float* partial_lse = nullptr;
  PackedOut* packed = nullptr;

  ForwardWorkspace(const AttentionShape& shape, const FusedTuning& tuning, Carver& carver) {
    if (tuning.partial_out == PartialFormat::kPacked && shape.heads == kHeadsPerGroup) {
      packed = carver.take<PackedOut>(round_pairs(shape));
    } else {
      partial_out = carver.take<__nv_bfloat16>(round_pairs(shape) * pair_elements(shape));
      partial_lse = carver.take<float>(round_pairs(shape) * head_count_floats(shape));
    }
  }
};

struct BackwardWorkspace {
  static constexpr std::size_t kUnitFloats = 2 * kBlock * kHeadDim;
  float* statistics[kBranches];
  __nv_bfloat16* branch_dq[kBranches]; // of the query-major kernels
  float* list_partial;
  float* prefix_partial;
  float* compressed_partial; // and in the same place
  __nv_bfloat16* partial_dq; //   then a round's
  float* d_k_cmp;
  float* d_v_cmp;

  BackwardWorkspace(const AttentionShape& shape, const FusedTuning& tuning, Carver& carver) {
    const int prefix = query_major_tokens(shape, tuning);
    for (float*& branch : statistics)
      branch = take_statistics(shape, carver);
    for (const int branch : {kCompressed, kSelected})
      branch_dq[branch] = carver.take<__nv_bfloat16>(query_elements(shape));
    branch_dq[kSliding] = branch_dq[kCompressed]; // of both, or of the one that is on
    list_partial = carver.take<float>(block_lists_item_capacity(shape) * kUnitFloats);
    const auto prefix_tiles = [&](const BesideLanes& beside) {
      return range_backward_tiles(shape, KeyRange::kWindow, kCausal, prefix, beside);
    };
    prefix_partial = carver.take<float>(
        static_cast<std::size_t>(
            std::max(prefix_tiles({}), prefix_tiles(first_tokens_beside(shape, tuning, prefix)))) *
        kUnitFloats);
    // The compressed branch's sum is done when the lists begin.
    const std::size_t compressed_bytes = static_cast<std::size_t>(range_backward_tiles(
                                             shape, KeyRange::kCompressed, 0, shape.sequence)) *
                                         kUnitFloats * sizeof(float);
    const std::size_t pair_bytes =
        round_pairs(shape) * pair_elements(shape) * sizeof(__nv_bfloat16);
    char* in_turn = carver.take<char>(std::max(compressed_bytes, pair_bytes));
    compressed_partial = reinterpret_cast<float*>(in_turn);
    partial_dq = reinterpret_cast<__nv_bfloat16*>(in_turn);
    d_k_cmp = carver.take<float>(compressed_elements(shape));
    d_v_cmp = carver.take<float>(compressed_elements(shape));
  }
};

// Tokens whose selected branch takes the query-major kernels.
int dense_prefix(const FusedInputs& inputs) {
  // Given blocks need not be every causal one.
  return inputs.given_indices == nullptr ? query_major_tokens(inputs.shape, inputs.tuning) : 0;
}
// Whether one branch only is on: what its kernels give is all there is.
bool is_alone(const FusedInputs& inputs) {
  return is_on(inputs, kCompressed) + is_on(inputs, kSelected) + is_on(inputs, kSliding) == 1;
}
// How they see their keys: every causal block is selected, or the selected ones are masked.
KeyRange range_of(const FusedInputs& inputs, int branch) {
  if (branch == kCompressed) return KeyRange::kCompressed;
  return branch == kSelected && dense_prefix(inputs) > kDensePrefix ? KeyRange::kBlocks
                                                                    : KeyRange::kWindow;
}

TileForwardParams tile_forward(const FusedInputs& inputs, const FusedSaved& saved, int branch) {
  TileForwardParams params = {.shape = inputs.shape,
                              .range = range_of(inputs, branch),
                              .window = branch == kSelected ? kCausal : kWindow,
                              .token_end = branch == kSelected ? dense_prefix(inputs)
                                                               : inputs.shape.sequence,
                              .q = inputs.q,
                              .k = inputs.k[branch],
                              .v = inputs.v[branch],
                              .scale = inputs.scale,
                              .indices = saved.indices,
                              .out = saved.branch_out[branch],
                              .lse = saved.branch_lse[branch]};
  return params;
}

BlockBackwardTensors tensors_of(const FusedInputs& inputs, const FusedGradients& gradients,
                                const BackwardWorkspace& workspace, int branch) {
  return {.q = inputs.q,
          .k = inputs.k[branch],
          .v = inputs.v[branch],
          .d_out = gradients.d_out,
          .statistics = workspace.statistics[branch]};
}

// Whether one walk gives the query gradients of window and compressed branch, those of the selected
// branch's first tokens with them, and the statistics of all rows.
bool joins_dq(const FusedInputs& inputs) {
  return is_on(inputs, kSliding) && is_on(inputs, kCompressed);
}

struct Interval {
  KeyRange range;
  int window;
  int token_end;
};
// Of a branch, or of the selected one's first tokens.
Interval interval_of(const FusedInputs& inputs, int branch) {
  const bool selected = branch == kSelected;
  return {range_of(inputs, branch), selected ? kCausal : kWindow,
          selected ? dense_prefix(inputs) : inputs.shape.sequence};
}

// The gradient towards queries of a branch in which keys form an interval.
cudaError_t query_backward(const FusedInputs& inputs, const FusedGradients& gradients,
                           const BackwardWorkspace& workspace, const int32_t* indices, int branch,
                           cudaStream_t stream, cudaEvent_t launched = nullptr) {
  const Interval interval = interval_of(inputs, branch);
  return launch_tile_backward(
      {.shape = inputs.shape,
       .range = interval.range,
       .window = interval.window,
       .token_end = interval.token_end,
       .tensors = tensors_of(inputs, gradients, workspace, branch),
       .scale = inputs.scale,
       .indices = indices,
       .d_q = is_alone(inputs) ? gradients.d_q : workspace.branch_dq[branch],
       .launched = launched},
      stream);
}

RangeBackwardParams key_params(const FusedInputs& inputs, const FusedGradients& gradients,
                               const BackwardWorkspace& workspace, int branch,
                               const BesideLanes& beside = {}) {
  const Interval interval = interval_of(inputs, branch);
  const bool direct = branch == kSliding; // a column of the window is one unit
  return {.shape = inputs.shape,
          .range = interval.range,
          .window = interval.window,
          .token_end = interval.token_end,
          .tensors = tensors_of(inputs, gradients, workspace, branch),
          .scale = inputs.scale,
          .partial_dkv =
              branch == kSelected ? workspace.prefix_partial : workspace.compressed_partial,
          .d_k = direct ? gradients.d_k[branch] : nullptr,
          .d_v = direct ? gradients.d_v[branch] : nullptr,
          .beside = beside};
}

// dK and dV on the side stream, beside what waits for memory. Those of the window in pieces, one a
// round, and the rest behind. Without the window, those of the selected branch's first tokens, of
// some lanes, beside the first round.
class KeysBeside {
public:
  KeysBeside(const FusedInputs& inputs, int prefix, int rounds) {
    const int sequence = inputs.shape.sequence;
    if (!is_on(inputs, kSelected) || prefix >= sequence || inputs.tuning.beside_ctas <= 0) return;
    if (is_on(inputs, kSliding)) {
      const int turns = std::max(1, inputs.tuning.beside_turns);
      all_ = range_backward_columns(inputs.shape, kWindow);
      piece_ = std::min(inputs.tuning.beside_ctas * turns, all_ / rounds);
      ctas_ = (piece_ + turns - 1) / turns;
      branch_ = kSliding;
    } else {
      lanes_ = first_tokens_beside(inputs.shape, inputs.tuning, prefix);
      if (lanes_.lanes == 0) return;
      all_ = piece_ = 1;
      branch_ = kSelected;
    }
  }
  bool runs() const { return piece_ > 0; }
  // Whether it takes a branch's dK and dV, or some of them.
  bool takes(int branch) const { return runs() && branch == branch_; }
  const BesideLanes& lanes() const { return lanes_; } // of the first tokens' it takes those
  int branch() const { return branch_; }

  cudaError_t join() { return fork_.join(); }

  // Before the kernel that a piece is to follow into its places, which then signals launched().
  cudaError_t fork(cudaStream_t stream) { return done_ == all_ ? cudaSuccess : fork_.fork(stream); }
  cudaStream_t stream() const { return fork_.side().stream; }
  cudaEvent_t launched() const { return runs() ? fork_.side().launched : nullptr; }
  cudaError_t piece(RangeBackwardParams params) {
    if (done_ == all_) return cudaSuccess;
    if (branch_ == kSliding) {
      params.first_column = done_;
      params.columns = piece_;
      params.most_ctas = ctas_;
    }
    params.is_beside = branch_ == kSelected;
    done_ += piece_;
    const SideStream& side = fork_.side();
    const cudaError_t error = cudaStreamWaitEvent(side.stream, side.launched);
    return error == cudaSuccess ? launch_range_backward(params, side.stream) : error;
  }
  // The rest of the window, and the streams are one again.
  cudaError_t finish(RangeBackwardParams params, cudaStream_t stream) {
    params.first_column = done_;
    params.columns = all_ - done_;
    const cudaError_t error =
        params.columns > 0 ? launch_range_backward(params, stream) : cudaSuccess;
    return error == cudaSuccess ? fork_.join() : error;
  }

private:
  int branch_ = -1;
  int all_ = 0; // columns of the window, or one
  int piece_ = 0;
  int ctas_ = 0;
  BesideLanes lanes_;
  int done_ = 0;
  SideFork fork_;
};

} // namespace

int query_major_tokens(const AttentionShape& shape, const FusedTuning& tuning) {
  const int fastest = shape.sequence <= kWholeUpTo ? kWholeUpTo : kMaskedBesideLists;
  const int wanted = tuning.query_major_tokens > 0 ? tuning.query_major_tokens : fastest;
  const int most = shape.heads == kHeadsPerGroup ? kMostMaskedTokens : kDensePrefix;
  return std::min({shape.sequence, wanted, most});
}

std::size_t fused_list_bytes(const AttentionShape& shape) {
  Carver carver(nullptr);
  Lists lists(shape, carver);
  return carver.used();
}

std::size_t fused_forward_workspace_bytes(const AttentionShape& shape, const FusedTuning& tuning) {
  if (tuning.family == KernelFamily::kPortable) return 0;
  Carver carver(nullptr);
  ForwardWorkspace workspace(shape, tuning, carver);
  return carver.used();
}

std::size_t fused_backward_workspace_bytes(const AttentionShape& shape, const FusedTuning& tuning) {
  if (tuning.family == KernelFamily::kPortable) return portable::backward_workspace_bytes(shape);
  Carver carver(nullptr);
  BackwardWorkspace workspace(shape, tuning, carver);
  return carver.used();
}

cudaError_t launch_fused_forward(const FusedInputs& inputs, const FusedSaved& saved,
                                 __nv_bfloat16* out, void* workspace_bytes, cudaStream_t stream) {
  const AttentionShape& shape = inputs.shape;
  if (is_on(inputs, kSelected) && !is_on(inputs, kCompressed) && chooses_blocks(inputs))
    return cudaErrorInvalidValue; // nothing to choose them by
  if (inputs.tuning.family == KernelFamily::kPortable)
    return portable::launch_forward(inputs, saved, out, stream);
  if (shape.head_dim != kHeadDim) return cudaErrorInvalidValue;
  Carver list_carver(saved.lists);
  Carver carver(workspace_bytes);
  const Lists lists(shape, list_carver);
  const ForwardWorkspace workspace(shape, inputs.tuning, carver);
  Sequence run;
  if (is_on(inputs, kCompressed)) {
    if (inputs.pool_k != nullptr) {
      run.then([&] { return pool(inputs, stream); });
    }
    run.then([&] { return launch_tile_forward(tile_forward(inputs, saved, kCompressed), stream); });
  }
  if (is_on(inputs, kSliding)) {
    run.then([&] { return launch_tile_forward(tile_forward(inputs, saved, kSliding), stream); });
  }
  const int prefix = dense_prefix(inputs);
  SideFork beside_lists;
  if (is_on(inputs, kSelected)) {
    if (inputs.given_indices != nullptr) {
      run.then([&] { return put_given_in_order(inputs, saved, stream); });
    } else if (chooses_blocks(inputs)) {
      run.then([&] {
        return launch_selection({.shape = shape,
                                 .q = inputs.q,
                                 .k_cmp = inputs.k[kCompressed],
                                 .lse_cmp = saved.branch_lse[kCompressed],
                                 .scale = inputs.scale,
                                 .indices = saved.indices},
                                stream);
      });
    }
    if (prefix > 0) {
      run.then([&] {
        TileForwardParams first = tile_forward(inputs, saved, kSelected);
        if (prefix == shape.sequence || inputs.tuning.list_ctas <= 0)
          return launch_tile_forward(first, stream);
        first.leave_ctas = inputs.tuning.list_ctas;
        const cudaError_t error = beside_lists.fork(stream);
        return error == cudaSuccess ? launch_tile_forward(first, beside_lists.side().stream)
                                    : error;
      });
    }
    if (prefix < shape.sequence) {
      run.then([&] {
        return launch_block_lists({.shape = shape,
                                   .indices = saved.indices,
                                   .first_token = prefix,
                                   .entries = lists.entries,
                                   .segment_start = lists.segment_start,
                                   .segment_item_start = lists.segment_item_start,
                                   .items = lists.items,
                                   .claims = lists.claims,
                                   .chunk_counts = lists.chunk_counts},
                                  stream);
      });
    }
  }
  // Partial results of one round at a time.
  const bool listed = is_on(inputs, kSelected) && prefix < shape.sequence;
  const int rounds = listed ? list_rounds(shape) : 1;
  // Then every listed token has 16 blocks, and lists begin with a whole block.
  const bool joined = workspace.packed != nullptr && prefix >= kDensePrefix && prefix % kBlock == 0;
  for (int index = 0; index < rounds; ++index) {
    const ListRound round = listed ? list_round(shape, index) : all_lanes(shape);
    if (listed) {
      run.then([&] {
        return launch_selected_forward({.shape = shape,
                                        .round = round,
                                        .q = inputs.q,
                                        .k = inputs.k[kSelected],
                                        .v = inputs.v[kSelected],
                                        .entries = lists.entries,
                                        .segment_start = lists.segment_start,
                                        .segment_item_start = lists.segment_item_start,
                                        .items = lists.items,
                                        .claims = lists.claims,
                                        .joined_first_token = joined ? prefix : 0,
                                        .scale = inputs.scale,
                                        .partial_out = workspace.partial_out,
                                        .partial_lse = workspace.partial_lse,
                                        .packed = workspace.packed},
                                       stream);
      });
    }
    if (beside_lists.is_forked()) run.then([&] { return beside_lists.join(); });
    run.then([&] {
      return launch_merge(
          {.shape = shape,
           .round = round,
           .indices = is_on(inputs, kSelected) ? saved.indices : nullptr,
           .first_token = prefix,
           .joined = joined,
           .partial_out = workspace.partial_out,
           .partial_lse = workspace.partial_lse,
           .packed = listed ? workspace.packed : nullptr,
           .v = inputs.v[kSelected],
           .out_slc = is_on(inputs, kSelected) ? saved.branch_out[kSelected] : nullptr,
           .lse_slc = saved.branch_lse[kSelected],
           .out_cmp = is_on(inputs, kCompressed) ? saved.branch_out[kCompressed] : nullptr,
           .out_win = is_on(inputs, kSliding) ? saved.branch_out[kSliding] : nullptr,
           .gates = inputs.gates,
           .out = out},
          stream);
    });
  }
  return run.error();
}

cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, void* workspace_bytes,
                                  cudaStream_t stream) {
  const AttentionShape& shape = inputs.shape;
  if (inputs.tuning.family == KernelFamily::kPortable)
    return portable::launch_backward(inputs, saved, gradients, workspace_bytes, stream);
  Carver list_carver(saved.lists);
  Carver carver(workspace_bytes);
  const Lists lists(shape, list_carver);
  const BackwardWorkspace workspace(shape, inputs.tuning, carver);
  const int prefix = is_on(inputs, kSelected) ? dense_prefix(inputs) : 0;
  const bool listed = is_on(inputs, kSelected) && prefix < shape.sequence;
  const int rounds = listed ? list_rounds(shape) : 1;
  // Then the kernels of intervals write d_q themselves.
  const bool alone = is_alone(inputs);
  KeysBeside beside(inputs, prefix, rounds);
  Sequence run;
  BackwardPrepareParams prepare = {.shape = shape, .d_out = gradients.d_out, .gates = inputs.gates};
  for (int branch = 0; branch < kBranches; ++branch) {
    const bool on = is_on(inputs, branch);
    prepare.branch_out[branch] = on ? saved.branch_out[branch] : nullptr;
    prepare.branch_lse[branch] = on ? saved.branch_lse[branch] : nullptr;
    prepare.statistics[branch] = on ? workspace.statistics[branch] : nullptr;
  }
  prepare.indices = prefix > kDensePrefix ? saved.indices : nullptr;
  prepare.d_gates = gradients.d_gates;
  if (!joins_dq(inputs)) {
    run.then([&] { return launch_backward_prepare(prepare, stream); });
  } else {
    run.then([&] {
      return launch_joint_backward(
          {.shape = shape,
           .window = tensors_of(inputs, gradients, workspace, kSliding),
           .compressed = tensors_of(inputs, gradients, workspace, kCompressed),
           .scale = inputs.scale,
           .prepare = prepare,
           .selected = tensors_of(inputs, gradients, workspace, kSelected),
           .selected_tokens = prefix,
           .indices = prefix > kDensePrefix ? saved.indices : nullptr,
           .d_q = workspace.branch_dq[kCompressed]},
          stream);
    });
  }
  // Both gradients of such a branch, but for what the joint walk gives and what is done beside.
  const auto interval_backward = [&](int branch) {
    if (branch != kSliding || !beside.takes(branch)) {
      run.then([&] {
        return launch_range_backward(
            key_params(inputs, gradients, workspace, branch,
                       beside.takes(branch) ? beside.lanes() : BesideLanes{}),
            stream);
      });
    }
    // Alone, d_q of the first tokens has its places before list backward, which takes what its
    // longest tiles leave.
    const bool ahead = alone && beside.takes(branch);
    if (ahead) {
      run.then([&] { return beside.fork(stream); });
      run.then([&] {
        return query_backward(inputs, gradients, workspace, saved.indices, branch, beside.stream(),
                              beside.launched());
      });
      run.then([&] { return cudaStreamWaitEvent(stream, beside.launched()); });
    } else if (!joins_dq(inputs)) {
      run.then([&] {
        return query_backward(inputs, gradients, workspace, saved.indices, branch, stream);
      });
    }
  };
  if (prefix > 0) interval_backward(kSelected);
  if (is_on(inputs, kSliding)) interval_backward(kSliding);
  if (is_on(inputs, kCompressed)) {
    const bool pooled = inputs.pool_k != nullptr;
    interval_backward(kCompressed);
    run.then([&] {
      return launch_sum_blocks({.shape = shape,
                                .keys = compressed_count(shape.sequence),
                                .range_partial = workspace.compressed_partial,
                                .range = KeyRange::kCompressed,
                                .token_end = shape.sequence,
                                .d_k = pooled ? nullptr : gradients.d_k[kCompressed],
                                .d_v = pooled ? nullptr : gradients.d_v[kCompressed],
                                .d_k_fp32 = pooled ? workspace.d_k_cmp : nullptr,
                                .d_v_fp32 = pooled ? workspace.d_v_cmp : nullptr},
                               stream);
    });
    if (pooled) {
      run.then([&] {
        return pool_backward(inputs, gradients, workspace.d_k_cmp, workspace.d_v_cmp, stream);
      });
    }
  }
  for (int index = 0; index < rounds; ++index) {
    const ListRound round = listed ? list_round(shape, index) : all_lanes(shape);
    if (beside.runs()) run.then([&] { return beside.fork(stream); });
    if (listed) {
      run.then([&] {
        return launch_selected_backward(
            {.shape = shape,
             .round = round,
             .tensors = tensors_of(inputs, gradients, workspace, kSelected),
             .entries = lists.entries,
             .segment_item_start = lists.segment_item_start,
             .items = lists.items,
             .claims = lists.claims,
             .scale = inputs.scale,
             .partial_dq = workspace.partial_dq,
             .partial_dkv = workspace.list_partial,
             .launched = beside.launched()},
            stream);
      });
    }
    if (beside.runs()) {
      run.then([&] {
        return beside.piece(
            key_params(inputs, gradients, workspace, beside.branch(), beside.lanes()));
      });
    }
    if (alone && !listed) break;
    run.then([&] {
      MergeQueryGradientParams merge = {.shape = shape,
                                        .round = round,
                                        .indices = listed ? saved.indices : nullptr,
                                        .first_token = prefix,
                                        .leaves_first = alone,
                                        .partial_dq = workspace.partial_dq,
                                        .scale = inputs.scale,
                                        .d_q = gradients.d_q};
      for (int branch = 0; branch < kBranches; ++branch) {
        const bool dense = is_on(inputs, branch) && !alone &&
                           (branch != kSelected || (prefix > 0 && !joins_dq(inputs))) &&
                           (branch != kSliding || !joins_dq(inputs));
        merge.addends[branch] = dense ? workspace.branch_dq[branch] : nullptr;
        merge.addend_end[branch] = branch == kSelected ? prefix : shape.sequence;
      }
      return launch_merge_query_gradient(merge, stream);
    });
  }
  if (beside.takes(kSelected)) run.then([&] { return beside.join(); });
  if (is_on(inputs, kSelected)) {
    run.then([&] {
      return launch_sum_blocks({.shape = shape,
                                .keys = shape.sequence,
                                .list_partial = listed ? workspace.list_partial : nullptr,
                                .segment_item_start = lists.segment_item_start,
                                .range_partial = prefix > 0 ? workspace.prefix_partial : nullptr,
                                .range = KeyRange::kWindow,
                                .window = kCausal,
                                .token_end = prefix,
                                .beside = beside.takes(kSelected) ? beside.lanes() : BesideLanes{},
                                .d_k = gradients.d_k[kSelected],
                                .d_v = gradients.d_v[kSelected]},
                               stream);
    });
  }
  if (beside.takes(kSliding)) {
    run.then(
        [&] { return beside.finish(key_params(inputs, gradients, workspace, kSliding), stream); });
  }
  return run.error();
}

} // namespace nsa::kernels
