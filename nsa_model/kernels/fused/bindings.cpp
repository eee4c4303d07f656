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

cudaError_t launch_block_lists(const Bindings& bound, const ListCut& cut, cudaStream_t stream) {
  return launch_block_lists({.shape = bound.inputs.shape,
                             .cut = cut,
                             .indices = bound.saved.indices,
                             .entries = bound.lists.entries,
                             .segment_start = bound.lists.segment_start,
                             .segment_item_start = bound.lists.segment_item_start,
                             .items = bound.lists.items,
                             .claims = bound.lists.claims,
                             .chunk_counts = bound.lists.chunk_counts},
                            stream);
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
