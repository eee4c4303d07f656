#include "nsa_model/kernels/fused/bindings.h"

#include "nsa_model/kernels/given_indices/given_indices.h"
#include "nsa_model/kernels/pooling/pooling.h"

namespace nsa::kernels {
namespace {

Lists lists_at(const AttentionShape& shape, void* base) {
  Carver carver(base);
  return Lists(shape, carver);
}

} // namespace

Bindings::Bindings(const Schedule& schedule, const FusedInputs& of, const FusedSaved& kept)
    : inputs(of), saved(kept), plan(schedule.plan), layout(lay_out(schedule)),
      lists(lists_at(of.shape, kept.lists)) {}

cudaError_t launch_pooling(const Bindings& bound, cudaStream_t stream) {
  const FusedInputs& inputs = bound.inputs;
  return launch_pooling({.shape = inputs.shape,
                         .k = inputs.pool_k,
                         .v = inputs.pool_v,
                         .k_cmp = const_cast<__nv_bfloat16*>(inputs.k[kCompressed]),
                         .v_cmp = const_cast<__nv_bfloat16*>(inputs.v[kCompressed])},
                        stream);
}

cudaError_t launch_pooling_backward(const Bindings& bound, cudaStream_t stream) {
  return launch_pooling_backward({.shape = bound.inputs.shape,
                                  .d_k_cmp = bound.scratch<float>(Buffer::kPooledKeyDk),
                                  .d_v_cmp = bound.scratch<float>(Buffer::kPooledKeyDv),
                                  .d_k = bound.gradients->d_k[kCompressed],
                                  .d_v = bound.gradients->d_v[kCompressed]},
                                 stream);
}

cudaError_t launch_given_indices(const Bindings& bound, cudaStream_t stream) {
  return launch_given_indices({.shape = bound.inputs.shape,
                               .given = bound.inputs.given_indices,
                               .indices = bound.saved.indices},
                              stream);
}

cudaError_t launch_block_lists(const Bindings& bound, cudaStream_t stream) {
  return launch_block_lists({.shape = bound.inputs.shape,
                             .cut = bound.plan.cut,
                             .indices = bound.saved.indices,
                             .entries = bound.lists.entries,
                             .segment_start = bound.lists.segment_start,
                             .segment_item_start = bound.lists.segment_item_start,
                             .items = bound.lists.items,
                             .claims = bound.lists.claims,
                             .chunk_counts = bound.lists.chunk_counts},
                            stream);
}

SelectedForwardParams selected_forward_params(const Bindings& bound, const Node& node) {
  return {.shape = bound.inputs.shape,
          .round = node.round,
          .q = bound.inputs.q,
          .k = bound.inputs.k[kSelected],
          .v = bound.inputs.v[kSelected],
          .entries = bound.lists.entries,
          .segment_start = bound.lists.segment_start,
          .segment_item_start = bound.lists.segment_item_start,
          .items = bound.lists.items,
          .claims = bound.lists.claims,
          .joined_first_token = bound.plan.joined ? bound.plan.first_tokens : 0,
          .scale = bound.inputs.scale,
          .partial_out = bound.scratch<__nv_bfloat16>(Buffer::kPartialOut),
          .partial_lse = bound.scratch<float>(Buffer::kPartialLse),
          .packed = bound.scratch<PackedOut>(Buffer::kPackedOut)};
}

cudaError_t launch_merge(const Bindings& bound, const Node& node, cudaStream_t stream) {
  const FusedInputs& inputs = bound.inputs;
  return launch_merge({.shape = inputs.shape,
                       .round = node.round,
                       .indices = bound.is_on(kSelected) ? bound.saved.indices : nullptr,
                       .first_token = bound.plan.first_tokens,
                       .joined = bound.plan.joined,
                       .partial_out = bound.scratch<__nv_bfloat16>(Buffer::kPartialOut),
                       .partial_lse = bound.scratch<float>(Buffer::kPartialLse),
                       .packed = bound.scratch<PackedOut>(Buffer::kPackedOut),
                       .v = inputs.v[kSelected],
                       .out_slc = bound.branch_out(kSelected),
                       .lse_slc = bound.saved.branch_lse[kSelected],
                       .out_cmp = bound.branch_out(kCompressed),
                       .out_win = bound.branch_out(kSliding),
                       .gates = inputs.gates,
                       .out = bound.out},
                      stream);
}

// The first of a KV head's rounds also visits its first tokens, if their dQ is in its own buffer.
cudaError_t launch_merge_query_gradient(const Bindings& bound, const Node& node,
                                        cudaStream_t stream) {
  const SelectedPlan& plan = bound.plan;
  const int listed_from = node.round.first_token();
  const __nv_bfloat16* apart = bound.scratch<__nv_bfloat16>(Buffer::kFirstTokenDq);
  const bool first = listed_from == plan.first_tokens || !plan.listed;
  MergeQueryGradientParams params = {.shape = bound.inputs.shape,
                                     .round = node.round,
                                     .indices = plan.listed ? bound.saved.indices : nullptr,
                                     .from = apart != nullptr && first ? 0 : listed_from,
                                     .first_token = listed_from,
                                     .partial_dq = bound.scratch<__nv_bfloat16>(Buffer::kPartialDq),
                                     .scale = bound.inputs.scale,
                                     .addends = {},
                                     .addend_end = {},
                                     .d_q = bound.gradients->d_q};
  if (bound.is_on(kCompressed) || bound.is_on(kSliding)) { // the branch that is on has written it
    params.addends[kCompressed] = bound.gradients->d_q;
    params.addend_end[kCompressed] = bound.inputs.shape.sequence;
  }
  if (apart != nullptr) {
    params.addends[kSelected] = apart;
    params.addend_end[kSelected] = plan.first_tokens;
  }
  return launch_merge_query_gradient(params, stream);
}

BackwardPrepareParams prepare_params(const Bindings& bound, const int32_t* indices) {
  BackwardPrepareParams prepare = {.shape = bound.inputs.shape,
                                   .d_out = bound.gradients->d_out,
                                   .gates = bound.inputs.gates,
                                   .indices = indices,
                                   .d_gates = bound.gradients->d_gates};
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!bound.is_on(branch)) continue;
    prepare.branch_out[branch] = bound.saved.branch_out[branch];
    prepare.branch_lse[branch] = bound.saved.branch_lse[branch];
    prepare.statistics[branch] = bound.statistics(branch);
  }
  return prepare;
}

} // namespace nsa::kernels
