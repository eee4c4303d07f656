#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/compressed_backward/compressed_backward.h"
#include "nsa_model/kernels/fused/bindings.h"
#include "nsa_model/kernels/selected_forward/selected_forward.h"
#include "nsa_model/kernels/selection/selection.h"
#include "nsa_model/kernels/tile_backward/tile_backward.h"
#include "nsa_model/kernels/tile_forward/tile_forward.h"

// The kernel parameters of each node, for the Hopper family.

namespace nsa::kernels {
namespace {

// The keys that a branch's query-major kernels see; for the selected branch those of its first
// tokens.
struct Interval {
  KeyRange range;
  int window;
  int token_end;
};
Interval interval_of(const Bindings& bound, int branch) {
  const bool selected = branch == kSelected;
  return {bound.plan.range_of(branch), selected ? kCausal : kWindow,
          selected ? bound.plan.first_tokens : bound.inputs.shape.sequence};
}

BlockBackwardTensors tensors_of(const Bindings& bound, int branch) {
  return {.q = bound.inputs.q,
          .k = bound.inputs.k[branch],
          .v = bound.inputs.v[branch],
          .d_out = bound.gradients->d_out,
          .statistics = bound.statistics(branch)};
}

bool has_compressed_backward(const Bindings& bound) {
  return bound.layout.places[static_cast<std::size_t>(Buffer::kQuerySums)].bytes > 0;
}

// Indices of the first tokens, if they use a mask of blocks.
const int32_t* mask_indices(const Bindings& bound) {
  return bound.plan.first_tokens > kDenseFirstTokens ? bound.saved.indices : nullptr;
}

cudaError_t tile_forward(const Bindings& bound, const Node& node, cudaStream_t stream) {
  const Interval interval = interval_of(bound, node.branch);
  TileForwardParams params = {.shape = bound.inputs.shape,
                              .range = interval.range,
                              .window = interval.window,
                              .token_end = interval.token_end,
                              .q = bound.inputs.q,
                              .k = bound.inputs.k[node.branch],
                              .v = bound.inputs.v[node.branch],
                              .scale = bound.inputs.scale,
                              .indices = bound.saved.indices,
                              .out = bound.saved.branch_out[node.branch],
                              .lse = bound.saved.branch_lse[node.branch],
                              .leave_ctas = node.leave_ctas};
  if (node.branch == kSelected && !bound.plan.listed) { // nothing is merged later
    params.gated = {.compressed = bound.branch_out(kCompressed),
                    .window = bound.branch_out(kSliding),
                    .gates = bound.inputs.gates,
                    .sum = bound.out};
  }
  return launch_tile_forward(params, stream);
}

cudaError_t selection(const Bindings& bound, cudaStream_t stream) {
  return launch_selection({.shape = bound.inputs.shape,
                           .q = bound.inputs.q,
                           .k_cmp = bound.inputs.k[kCompressed],
                           .lse_cmp = bound.saved.branch_lse[kCompressed],
                           .scale = bound.inputs.scale,
                           .indices = bound.saved.indices,
                           .scores = bound.scratch<float>(Buffer::kScores)},
                          stream);
}

cudaError_t joint_backward(const Bindings& bound, cudaStream_t stream) {
  return launch_joint_backward({.shape = bound.inputs.shape,
                                .window = tensors_of(bound, kSliding),
                                .compressed = tensors_of(bound, kCompressed),
                                .scale = bound.inputs.scale,
                                .prepare = prepare_params(bound, mask_indices(bound)),
                                .selected = tensors_of(bound, kSelected),
                                .selected_tokens = bound.plan.first_tokens,
                                .compressed_keys = !has_compressed_backward(bound),
                                .indices = mask_indices(bound),
                                .d_q = bound.gradients->d_q},
                               stream);
}

cudaError_t tile_backward(const Bindings& bound, const Node& node, cudaStream_t stream,
                          cudaEvent_t launched) {
  const Interval interval = interval_of(bound, node.branch);
  __nv_bfloat16* apart =
      node.branch == kSelected ? bound.scratch<__nv_bfloat16>(Buffer::kFirstTokenDq) : nullptr;
  return launch_tile_backward({.shape = bound.inputs.shape,
                               .range = interval.range,
                               .window = interval.window,
                               .token_end = interval.token_end,
                               .tensors = tensors_of(bound, node.branch),
                               .scale = bound.inputs.scale,
                               .indices = bound.saved.indices,
                               .d_q = apart != nullptr ? apart : bound.gradients->d_q,
                               .launched = launched},
                              stream);
}

cudaError_t range_backward(const Bindings& bound, const Node& node, cudaStream_t stream) {
  const int branch = node.branch;
  const Interval interval = interval_of(bound, branch);
  // A column of the window is one unit.
  const bool direct = branch == kSliding || (branch == kSelected && bound.plan.whole_keys);
  return launch_range_backward(
      {.shape = bound.inputs.shape,
       .range = interval.range,
       .window = interval.window,
       .token_end = interval.token_end,
       .tensors = tensors_of(bound, branch),
       .scale = bound.inputs.scale,
       .partial_dkv = bound.scratch<float>(branch == kSelected ? Buffer::kFirstTokenPartial
                                                               : Buffer::kCompressedPartial),
       .d_k = direct ? bound.gradients->d_k[branch] : nullptr,
       .d_v = direct ? bound.gradients->d_v[branch] : nullptr,
       .first_column = node.first_column,
       .columns = node.columns,
       .most_ctas = node.most_ctas,
       .beside = branch == kSelected ? bound.plan.beside : BesideKvHeads{},
       .is_beside = node.is_beside},
      stream);
}

cudaError_t compressed_backward(const Bindings& bound, const Node& node, cudaStream_t stream) {
  return launch_compressed_backward(
      {.shape = bound.inputs.shape,
       .launch = node.launch,
       .tensors = tensors_of(bound, kCompressed),
       .statistics = bound.statistics(kCompressed),
       .scale = bound.inputs.scale,
       .gates = bound.inputs.gates,
       .key_bounds = bound.scratch<float2>(Buffer::kKeyBounds),
       .query_sums = bound.scratch<int32_t>(Buffer::kQuerySums),
       .partial_dkv = bound.scratch<float>(Buffer::kCompressedPartial),
       .adds = bound.is_on(kSliding), // the joint kernel has written dQ of the window
       .d_q = bound.gradients->d_q},
      stream);
}

cudaError_t sum_compressed(const Bindings& bound, const Node& node, cudaStream_t stream) {
  const AttentionShape& shape = bound.inputs.shape;
  const bool pooled = bound.inputs.pool_k != nullptr;
  const bool in_one = has_compressed_backward(bound);
  const bool is_last = !in_one || node.launch + 1 == compressed_backward_launches(shape);
  return launch_reduce_key_gradient(
      {.shape = shape,
       .keys = compressed_count(shape.sequence),
       .range_partial = bound.scratch<float>(Buffer::kCompressedPartial),
       .range = KeyRange::kCompressed,
       .token_end = shape.sequence,
       .bands = in_one ? compressed_backward_bands(shape, node.launch) : RangeBands{},
       .d_k = pooled || !is_last ? nullptr : bound.gradients->d_k[kCompressed],
       .d_v = pooled || !is_last ? nullptr : bound.gradients->d_v[kCompressed],
       .d_k_fp32 = bound.scratch<float>(Buffer::kPooledKeyDk),
       .d_v_fp32 = bound.scratch<float>(Buffer::kPooledKeyDv),
       .adds = node.launch > 0},
      stream);
}

cudaError_t sum_selected(const Bindings& bound, const Node& node, cudaStream_t stream) {
  return launch_reduce_key_gradient(
      {.shape = bound.inputs.shape,
       .round = node.round,
       .keys = bound.inputs.shape.sequence,
       .list_partial = bound.scratch<float>(Buffer::kListPartial),
       .segment_item_start = bound.lists.segment_item_start,
       .range_partial = bound.scratch<float>(Buffer::kFirstTokenPartial),
       .range = KeyRange::kWindow,
       .window = kCausal,
       .token_end = bound.plan.first_tokens,
       .beside = bound.plan.beside,
       .d_k = bound.gradients->d_k[kSelected],
       .d_v = bound.gradients->d_v[kSelected]},
      stream);
}

cudaError_t selected_backward(const Bindings& bound, const Node& node, cudaStream_t stream,
                              cudaEvent_t launched) {
  return launch_selected_backward({.shape = bound.inputs.shape,
                                   .round = node.round,
                                   .reduced = node.whole,
                                   .tensors = tensors_of(bound, kSelected),
                                   .entries = bound.lists.entries,
                                   .segment_item_start = bound.lists.segment_item_start,
                                   .items = bound.lists.items,
                                   .claims = bound.lists.claims,
                                   .scale = bound.inputs.scale,
                                   .partial_dq = bound.scratch<__nv_bfloat16>(Buffer::kPartialDq),
                                   .partial_dkv = bound.scratch<float>(Buffer::kListPartial),
                                   .launched = launched},
                                  stream);
}

} // namespace

cudaError_t launch_hopper_node(const Bindings& bound, const Node& node, cudaStream_t stream,
                               cudaEvent_t launched) {
  switch (node.kernel) {
  case Kernel::kPooling:
    return launch_pooling(bound, stream);
  case Kernel::kTileForward:
    return tile_forward(bound, node, stream);
  case Kernel::kGivenIndices:
    return launch_given_indices(bound, stream);
  case Kernel::kSelection:
    return selection(bound, stream);
  case Kernel::kBlockLists:
    return launch_block_lists(bound, stream);
  case Kernel::kSelectedForward:
    return launch_selected_forward(selected_forward_params(bound, node), stream);
  case Kernel::kMerge:
    return launch_merge(bound, node, stream);
  case Kernel::kBackwardPrepare:
    return launch_backward_prepare(prepare_params(bound, mask_indices(bound)), stream);
  case Kernel::kJointBackward:
    return joint_backward(bound, stream);
  case Kernel::kTileBackward:
    return tile_backward(bound, node, stream, launched);
  case Kernel::kRangeBackward:
    return range_backward(bound, node, stream);
  case Kernel::kCompressedBackward:
    return compressed_backward(bound, node, stream);
  case Kernel::kReduceKeyGradient:
    return node.branch == kSelected ? sum_selected(bound, node, stream)
                                    : sum_compressed(bound, node, stream);
  case Kernel::kPoolingBackward:
    return launch_pooling_backward(bound, stream);
  case Kernel::kSelectedBackward:
    return selected_backward(bound, node, stream, launched);
  case Kernel::kMergeQueryGradient:
    return launch_merge_query_gradient(bound, node, stream);
  default:
    return cudaErrorInvalidValue; // a node of the other family
  }
}

} // namespace nsa::kernels
