#include "nsa_model/kernels/fused/fused.h"

#include <algorithm>

#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/fused/schedule.h"
#include "nsa_model/kernels/fused/side_stream.h"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/portable/portable.h"
#include "nsa_model/kernels/selected_forward/selected_forward.h"
#include "nsa_model/kernels/selection/selection.h"
#include "nsa_model/kernels/tile_forward/tile_forward.h"

// The forward's order of launches, and the sizes of both passes' buffers.

namespace nsa::kernels {
namespace {

TileForwardParams tile_forward(const FusedInputs& inputs, const FusedSaved& saved, int branch) {
  TileForwardParams params = {.shape = inputs.shape,
                              .range = range_of(inputs, branch),
                              .window = branch == kSelected ? kCausal : kWindow,
                              .token_end = branch == kSelected ? Schedule(inputs).prefix
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

// A call with every branch, whose blocks the selection chooses: for sizes.
FusedInputs every_branch(const AttentionShape& shape, const FusedTuning& tuning) {
  static const __nv_bfloat16 some = {};
  FusedInputs inputs = {};
  inputs.shape = shape;
  inputs.tuning = tuning;
  for (const __nv_bfloat16*& k : inputs.k)
    k = &some;
  return inputs;
}

} // namespace

std::size_t fused_list_bytes(const AttentionShape& shape) {
  Carver carver(nullptr);
  Lists lists(shape, carver);
  return carver.used();
}

std::size_t fused_forward_workspace_bytes(const FusedInputs& inputs) {
  if (inputs.tuning.family == KernelFamily::kPortable) return 0;
  return ForwardWorkspace(inputs, Schedule(inputs), nullptr).bytes;
}
std::size_t fused_forward_workspace_bytes(const AttentionShape& shape, const FusedTuning& tuning) {
  return fused_forward_workspace_bytes(every_branch(shape, tuning));
}

std::size_t fused_backward_workspace_bytes(const FusedInputs& inputs) {
  if (inputs.tuning.family == KernelFamily::kPortable)
    return portable::backward_workspace_bytes(inputs.shape);
  return fused_backward_part_bytes(inputs, ScratchPart::kKept) +
         std::max(fused_backward_part_bytes(inputs, ScratchPart::kStart),
                  fused_backward_part_bytes(inputs, ScratchPart::kLists));
}
std::size_t fused_backward_part_bytes(const FusedInputs& inputs, ScratchPart part) {
  return BackwardWorkspace(inputs, Schedule(inputs)).bytes(part);
}
std::size_t fused_backward_workspace_bytes(const AttentionShape& shape, const FusedTuning& tuning) {
  return fused_backward_workspace_bytes(every_branch(shape, tuning));
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
  const Lists lists(shape, list_carver);
  const Schedule schedule(inputs);
  const ForwardWorkspace workspace(inputs, schedule, workspace_bytes);
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
  const int prefix = schedule.prefix;
  const auto out_of = [&](int branch) {
    return is_on(inputs, branch) ? saved.branch_out[branch] : nullptr;
  };
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
                                 .indices = saved.indices,
                                 .scores = workspace.scores},
                                stream);
      });
    }
    if (prefix > 0) {
      run.then([&] {
        TileForwardParams first = tile_forward(inputs, saved, kSelected);
        if (!schedule.listed) { // nothing is merged behind it
          first.gated = {.compressed = out_of(kCompressed),
                         .window = out_of(kSliding),
                         .gates = inputs.gates,
                         .sum = out};
        }
        if (prefix == shape.sequence || inputs.tuning.list_ctas <= 0)
          return launch_tile_forward(first, stream);
        first.leave_ctas = inputs.tuning.list_ctas;
        const cudaError_t error = beside_lists.fork(stream);
        return error == cudaSuccess ? launch_tile_forward(first, beside_lists.side().stream)
                                    : error;
      });
    }
    if (schedule.listed) {
      run.then([&] {
        return launch_block_lists({.shape = shape,
                                   .cut = schedule.cut,
                                   .indices = saved.indices,
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
  for (int index = 0; index < schedule.rounds(shape); ++index) {
    const ListRound round = schedule.round(shape, index);
    if (schedule.listed) {
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
                                        .joined_first_token = schedule.joined ? prefix : 0,
                                        .scale = inputs.scale,
                                        .partial_out = workspace.partial_out,
                                        .partial_lse = workspace.partial_lse,
                                        .packed = workspace.packed},
                                       stream);
      });
    }
    if (beside_lists.is_forked()) run.then([&] { return beside_lists.join(); });
    if (prefix == shape.sequence) break; // their kernel has joined the branches
    run.then([&] {
      return launch_merge({.shape = shape,
                           .round = round,
                           .indices = is_on(inputs, kSelected) ? saved.indices : nullptr,
                           .first_token = prefix,
                           .joined = schedule.joined,
                           .partial_out = workspace.partial_out,
                           .partial_lse = workspace.partial_lse,
                           .packed = schedule.listed ? workspace.packed : nullptr,
                           .v = inputs.v[kSelected],
                           .out_slc = out_of(kSelected),
                           .lse_slc = saved.branch_lse[kSelected],
                           .out_cmp = out_of(kCompressed),
                           .out_win = out_of(kSliding),
                           .gates = inputs.gates,
                           .out = out},
                          stream);
    });
  }
  return run.error();
}

} // namespace nsa::kernels
