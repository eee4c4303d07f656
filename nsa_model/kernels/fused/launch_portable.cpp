#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/fused/bindings.h"
#include "nsa_model/kernels/portable/attend/attend.h"
#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"
#include "nsa_model/kernels/portable/list_attend/list_attend.h"
#include "nsa_model/kernels/portable/query_gradient/query_gradient.h"
#include "nsa_model/kernels/portable/selection/selection.h"

// The kernel parameters of each node, for the portable family.

namespace nsa::kernels {
namespace {

portable::Keys keys_of(const Bindings& bound, int branch) {
  constexpr KeyRange kRanges[kBranches] = {KeyRange::kCompressed, KeyRange::kBlocks,
                                           KeyRange::kWindow};
  return {.range = kRanges[branch], .k = bound.inputs.k[branch], .v = bound.inputs.v[branch]};
}

// The compressed branch runs alone, because block selection needs it. The others then run in one
// launch, unless the selected one uses lists.
cudaError_t attend(const Bindings& bound, const Node& node, cudaStream_t stream) {
  portable::AttendParams params = {.shape = bound.inputs.shape,
                                   .scale = bound.inputs.scale,
                                   .q = bound.inputs.q,
                                   .indices = bound.saved.indices};
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!bound.is_on(branch) || (branch == kCompressed) != (node.branch == kCompressed)) continue;
    if (branch == kSelected && bound.plan.listed) continue;
    params.branch[params.branches++] = {.keys = keys_of(bound, branch),
                                        .out = bound.saved.branch_out[branch],
                                        .lse = bound.saved.branch_lse[branch]};
  }
  return portable::launch_attend(params, stream);
}

cudaError_t selection(const Bindings& bound, cudaStream_t stream) {
  return portable::launch_selection({.shape = bound.inputs.shape,
                                     .q = bound.inputs.q,
                                     .k_cmp = bound.inputs.k[kCompressed],
                                     .lse_cmp = bound.saved.branch_lse[kCompressed],
                                     .scale = bound.inputs.scale,
                                     .indices = bound.saved.indices},
                                    stream);
}

cudaError_t query_gradient(const Bindings& bound, cudaStream_t stream) {
  portable::QueryGradientParams params = {.shape = bound.inputs.shape,
                                          .scale = bound.inputs.scale,
                                          .q = bound.inputs.q,
                                          .d_out = bound.gradients->d_out,
                                          .indices = bound.saved.indices,
                                          .d_q = bound.gradients->d_q};
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!bound.is_on(branch) || (branch == kSelected && bound.plan.listed)) continue;
    params.branch[params.branches++] = {.keys = keys_of(bound, branch),
                                        .statistics = bound.statistics(branch)};
  }
  return portable::launch_query_gradient(params, stream);
}

int32_t* unit_starts(const Bindings& bound, int branch) {
  return branch == kSelected ? bound.lists.segment_item_start
                             : bound.scratch<int32_t>(Buffer::kUnitStarts);
}
// dK and dV of lists that also give dQ are those of a round; otherwise of a branch.
float* units_of(const Bindings& bound, int branch) {
  return bound.scratch<float>(branch == kSelected && bound.plan.listed ? Buffer::kListPartial
                                                                       : Buffer::kUnitPartial);
}

cudaError_t key_gradient(const Bindings& bound, const Node& node, int branch, cudaStream_t stream) {
  return portable::launch_key_gradient(
      {.shape = bound.inputs.shape,
       .scale = bound.inputs.scale,
       .q = bound.inputs.q,
       .d_out = bound.gradients->d_out,
       .keys = keys_of(bound, branch),
       .statistics = bound.statistics(branch),
       .segment_item_start = unit_starts(bound, branch),
       .entries = bound.lists.entries,
       .items = bound.lists.items,
       .round = node.round,
       .reduced = node.whole,
       .partial_dq =
           branch == kSelected ? bound.scratch<__nv_bfloat16>(Buffer::kPartialDq) : nullptr,
       .partial = units_of(bound, branch)},
      stream);
}

cudaError_t reduce_key_gradient(const Bindings& bound, const Node& node, cudaStream_t stream) {
  const int branch = node.branch;
  const int sequence = bound.inputs.shape.sequence;
  const bool pooled = branch == kCompressed && bound.inputs.pool_k != nullptr;
  return launch_reduce_key_gradient(
      {.shape = bound.inputs.shape,
       .round = node.round,
       .keys = branch == kCompressed ? compressed_count(sequence) : sequence,
       .list_partial = units_of(bound, branch),
       .segment_item_start = unit_starts(bound, branch),
       .d_k = pooled ? nullptr : bound.gradients->d_k[branch],
       .d_v = pooled ? nullptr : bound.gradients->d_v[branch],
       .d_k_fp32 = pooled ? bound.scratch<float>(Buffer::kPooledKeyDk) : nullptr,
       .d_v_fp32 = pooled ? bound.scratch<float>(Buffer::kPooledKeyDv) : nullptr},
      stream);
}

} // namespace

cudaError_t launch_portable_node(const Bindings& bound, const Node& node, cudaStream_t stream) {
  switch (node.kernel) {
  case Kernel::kPooling:
    return launch_pooling(bound, stream);
  case Kernel::kAttend:
    return attend(bound, node, stream);
  case Kernel::kGivenIndices:
    return launch_given_indices(bound, stream);
  case Kernel::kPortableSelection:
    return selection(bound, stream);
  case Kernel::kBlockLists:
    return launch_block_lists(bound, stream);
  case Kernel::kSelectedForward:
    return portable::launch_list_attend(selected_forward_params(bound, node), stream);
  case Kernel::kMerge:
    return launch_merge(bound, node, stream);
  case Kernel::kBackwardPrepare:
    return launch_backward_prepare(prepare_params(bound, nullptr), stream);
  case Kernel::kQueryGradient:
    return query_gradient(bound, stream);
  case Kernel::kKeyGradient:
    return key_gradient(bound, node, node.branch, stream);
  case Kernel::kSelectedBackward:
    return key_gradient(bound, node, kSelected, stream);
  case Kernel::kMergeQueryGradient:
    return launch_merge_query_gradient(bound, node, stream);
  case Kernel::kReduceKeyGradient:
    return reduce_key_gradient(bound, node, stream);
  case Kernel::kPoolingBackward:
    return launch_pooling_backward(bound, stream);
  default:
    return cudaErrorInvalidValue; // a node of the other family
  }
}

} // namespace nsa::kernels
