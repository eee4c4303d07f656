#include "nsa_model/kernels/portable/portable.h"

#include <algorithm>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/portable/attend.h"

namespace nsa::kernels::portable {
namespace {

constexpr int kCompressed = 0;
constexpr int kSelected = 1;
constexpr KeyRange kRanges[kBranches] = {KeyRange::kCompressed, KeyRange::kBlocks,
                                         KeyRange::kWindow};

struct Workspace {
  float* statistics[kBranches];
  float* partial;      // dK and dV of one branch after another
  int32_t* unit_start; // of the window and the compressed branch, in turn
  float* d_k_cmp;
  float* d_v_cmp;

  Workspace(const AttentionShape& shape, Carver& carver) {
    for (float*& branch : statistics)
      branch = take_statistics(shape, carver);
    int64_t units = 0;
    for (const KeyRange range : kRanges)
      units = std::max(units, key_gradient_units(shape, range));
    partial = carver.take<float>(static_cast<std::size_t>(units) * 2 * kBlock *
                                 static_cast<std::size_t>(shape.head_dim));
    unit_start = carver.take<int32_t>(
        static_cast<std::size_t>(block_lists_segments(shape, whole_lists(shape))) + 1);
    d_k_cmp = carver.take<float>(compressed_elements(shape));
    d_v_cmp = carver.take<float>(compressed_elements(shape));
  }
};

Keys keys_of(const FusedInputs& inputs, int branch) {
  return {.range = kRanges[branch], .k = inputs.k[branch], .v = inputs.v[branch]};
}

// Branches [begin, end) in one launch.
cudaError_t attend(const FusedInputs& inputs, const FusedSaved& saved, int begin, int end,
                   cudaStream_t stream) {
  AttendParams params = {
      .shape = inputs.shape, .scale = inputs.scale, .q = inputs.q, .indices = saved.indices};
  for (int branch = begin; branch < end; ++branch) {
    if (!is_on(inputs, branch)) continue;
    params.branch[params.branches++] = {.keys = keys_of(inputs, branch),
                                        .out = saved.branch_out[branch],
                                        .lse = saved.branch_lse[branch]};
  }
  return launch_attend(params, stream);
}

cudaError_t build_lists(const AttentionShape& shape, const FusedSaved& saved, const Lists& lists,
                        cudaStream_t stream) {
  return launch_block_lists({.shape = shape,
                             .cut = whole_lists(shape),
                             .indices = saved.indices,
                             .entries = lists.entries,
                             .segment_start = lists.segment_start,
                             .segment_item_start = lists.segment_item_start,
                             .items = lists.items,
                             .claims = lists.claims,
                             .chunk_counts = lists.chunk_counts},
                            stream);
}

// dK and dV of one branch; of pooled keys in FP32 first.
void key_gradient(Sequence& run, const FusedInputs& inputs, const FusedGradients& gradients,
                  const Lists& lists, const Workspace& workspace, int branch, cudaStream_t stream) {
  const AttentionShape& shape = inputs.shape;
  const bool pooled = branch == kCompressed && inputs.pool_k != nullptr;
  int32_t* starts = branch == kSelected ? lists.segment_item_start : workspace.unit_start;
  run.then([&] {
       return launch_key_gradient({.shape = shape,
                                   .scale = inputs.scale,
                                   .q = inputs.q,
                                   .d_out = gradients.d_out,
                                   .keys = keys_of(inputs, branch),
                                   .statistics = workspace.statistics[branch],
                                   .segment_item_start = starts,
                                   .entries = lists.entries,
                                   .items = lists.items,
                                   .partial = workspace.partial},
                                  stream);
     })
      .then([&] {
        return launch_sum_blocks(
            {.shape = shape,
             .keys = branch == kCompressed ? compressed_count(shape.sequence) : shape.sequence,
             .list_partial = workspace.partial,
             .segment_item_start = starts,
             .d_k = pooled ? nullptr : gradients.d_k[branch],
             .d_v = pooled ? nullptr : gradients.d_v[branch],
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

} // namespace

std::size_t backward_workspace_bytes(const AttentionShape& shape) {
  Carver carver(nullptr);
  Workspace workspace(shape, carver);
  return carver.used();
}

cudaError_t launch_forward(const FusedInputs& inputs, const FusedSaved& saved, __nv_bfloat16* out,
                           cudaStream_t stream) {
  const AttentionShape& shape = inputs.shape;
  const auto out_of = [&](int branch) {
    return is_on(inputs, branch) ? saved.branch_out[branch] : nullptr;
  };
  Carver list_carver(saved.lists);
  const Lists lists(shape, list_carver);
  Sequence run;
  if (is_on(inputs, kCompressed)) {
    if (inputs.pool_k != nullptr) {
      run.then([&] { return pool(inputs, stream); });
    }
    run.then([&] { return attend(inputs, saved, kCompressed, kCompressed + 1, stream); });
  }
  if (is_on(inputs, kSelected)) {
    if (inputs.given_indices != nullptr) {
      run.then([&] { return put_given_in_order(inputs, saved, stream); });
    } else if (chooses_blocks(inputs)) {
      run.then([&] {
        return portable::launch_selection({.shape = shape,
                                           .q = inputs.q,
                                           .k_cmp = inputs.k[kCompressed],
                                           .lse_cmp = saved.branch_lse[kCompressed],
                                           .scale = inputs.scale,
                                           .indices = saved.indices},
                                          stream);
      });
    }
    run.then([&] { return build_lists(shape, saved, lists, stream); });
  }
  run.then([&] { return attend(inputs, saved, kSelected, kBranches, stream); });
  run.then([&] {
    return launch_merge({.shape = shape,
                         .first_token = shape.sequence, // no partial results
                         .out_slc = out_of(kSelected),
                         .out_cmp = out_of(kCompressed),
                         .out_win = out_of(kBranches - 1),
                         .gates = inputs.gates,
                         .out = out},
                        stream);
  });
  return run.error();
}

cudaError_t launch_backward(const FusedInputs& inputs, const FusedSaved& saved,
                            const FusedGradients& gradients, void* workspace_bytes,
                            cudaStream_t stream) {
  const AttentionShape& shape = inputs.shape;
  Carver list_carver(saved.lists);
  Carver carver(workspace_bytes);
  const Lists lists(shape, list_carver);
  const Workspace workspace(shape, carver);
  BackwardPrepareParams prepare = {.shape = shape,
                                   .d_out = gradients.d_out,
                                   .gates = inputs.gates,
                                   .d_gates = gradients.d_gates};
  QueryGradientParams query = {.shape = shape,
                               .scale = inputs.scale,
                               .q = inputs.q,
                               .d_out = gradients.d_out,
                               .indices = saved.indices,
                               .d_q = gradients.d_q};
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!is_on(inputs, branch)) continue;
    prepare.branch_out[branch] = saved.branch_out[branch];
    prepare.branch_lse[branch] = saved.branch_lse[branch];
    prepare.statistics[branch] = workspace.statistics[branch];
    query.branch[query.branches++] = {.keys = keys_of(inputs, branch),
                                      .statistics = workspace.statistics[branch]};
  }
  Sequence run;
  run.then([&] { return launch_backward_prepare(prepare, stream); }).then([&] {
    return launch_query_gradient(query, stream);
  });
  for (int branch = 0; branch < kBranches; ++branch)
    if (is_on(inputs, branch))
      key_gradient(run, inputs, gradients, lists, workspace, branch, stream);
  return run.error();
}

} // namespace nsa::kernels::portable
