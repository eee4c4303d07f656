#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/fused/bindings.h"
#include "nsa_model/kernels/portable/attend/attend.h"
#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"
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
// launch.
cudaError_t attend(const Bindings& bound, const Node& node, cudaStream_t stream) {
  portable::AttendParams params = {.shape = bound.inputs.shape,
                                   .scale = bound.inputs.scale,
                                   .q = bound.inputs.q,
                                   .indices = bound.saved.indices};
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!bound.is_on(branch) || (branch == kCompressed) != (node.branch == kCompressed)) continue;
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

cudaError_t merge(const Bindings& bound, cudaStream_t stream) {
  return launch_merge({.shape = bound.inputs.shape,
                       .first_token = bound.inputs.shape.sequence, // there are no partial results
                       .out_slc = bound.branch_out(kSelected),
                       .out_cmp = bound.branch_out(kCompressed),
                       .out_win = bound.branch_out(kSliding),
                       .gates = bound.inputs.gates,
                       .out = bound.out},
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
    if (!bound.is_on(branch)) continue;
    params.branch[params.branches++] = {.keys = keys_of(bound, branch),
                                        .statistics = bound.statistics(branch)};
  }
  return portable::launch_query_gradient(params, stream);
}

int32_t* unit_starts(const Bindings& bound, int branch) {
  return branch == kSelected ? bound.lists.segment_item_start
                             : bound.scratch<int32_t>(Buffer::kUnitStarts);
}

cudaError_t key_gradient(const Bindings& bound, const Node& node, cudaStream_t stream) {
  return portable::launch_key_gradient({.shape = bound.inputs.shape,
                                        .scale = bound.inputs.scale,
                                        .q = bound.inputs.q,
                                        .d_out = bound.gradients->d_out,
                                        .keys = keys_of(bound, node.branch),
                                        .statistics = bound.statistics(node.branch),
                                        .segment_item_start = unit_starts(bound, node.branch),
                                        .entries = bound.lists.entries,
                                        .items = bound.lists.items,
                                        .partial = bound.scratch<float>(Buffer::kUnitPartial)},
                                       stream);
}

cudaError_t reduce_key_gradient(const Bindings& bound, const Node& node, cudaStream_t stream) {
  const int branch = node.branch;
  const int sequence = bound.inputs.shape.sequence;
  const bool pooled = branch == kCompressed && bound.inputs.pool_k != nullptr;
  return launch_reduce_key_gradient(
      {.shape = bound.inputs.shape,
       .keys = branch == kCompressed ? compressed_count(sequence) : sequence,
       .list_partial = bound.scratch<float>(Buffer::kUnitPartial),
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
    return launch_block_lists(bound, portable::whole_lists(bound.inputs.shape), stream);
  case Kernel::kMerge:
    return merge(bound, stream);
  case Kernel::kBackwardPrepare:
    return launch_backward_prepare(prepare_params(bound, nullptr), stream);
  case Kernel::kQueryGradient:
    return query_gradient(bound, stream);
  case Kernel::kKeyGradient:
    return key_gradient(bound, node, stream);
  case Kernel::kReduceKeyGradient:
    return reduce_key_gradient(bound, node, stream);
  case Kernel::kPoolingBackward:
    return launch_pooling_backward(bound, stream);
  default:
    return cudaErrorInvalidValue; // a node of the other family
  }
}

} // namespace nsa::kernels
