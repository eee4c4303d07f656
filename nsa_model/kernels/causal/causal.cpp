#include "nsa_model/kernels/causal/causal.h"

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/tile_backward/tile_backward.h"
#include "nsa_model/kernels/tile_forward/tile_forward.h"

namespace nsa::kernels {
namespace {

// A window wider than any sequence. The factor 2 means that rows of a tile after the last token
// need no mask either.
constexpr int kEverything = 2 * kMaxSequence;

struct Workspace {
  float* statistics;            // for launch_backward_prepare
  float* partial_dkv = nullptr; // for launch_range_backward, if it does not write dK and dV itself

  Workspace(const AttentionShape& shape, Carver& carver) {
    statistics = carver.take<float>(statistics_floats(shape));
    if (range_backward_is_whole(shape, KeyRange::kWindow, kEverything, shape.sequence)) return;
    const int64_t tiles =
        range_backward_tiles(shape, KeyRange::kWindow, kEverything, shape.sequence);
    partial_dkv = carver.take<float>(static_cast<std::size_t>(tiles) * 2 * kBlock * kHeadDim);
  }
};

} // namespace

cudaError_t launch_causal_forward(const CausalForwardParams& params, cudaStream_t stream) {
  return launch_tile_forward({.shape = params.shape,
                              .range = KeyRange::kWindow,
                              .window = kEverything,
                              .token_end = params.shape.sequence,
                              .q = params.q,
                              .k = params.k,
                              .v = params.v,
                              .scale = params.scale,
                              .out = params.out,
                              .lse = params.lse},
                             stream);
}

std::size_t causal_backward_workspace_bytes(const AttentionShape& shape) {
  Carver carver(nullptr);
  const Workspace workspace(shape, carver);
  return carver.used();
}

cudaError_t launch_causal_backward(const CausalBackwardParams& params, void* workspace_bytes,
                                   cudaStream_t stream) {
  constexpr int kOnly = 2; // index of the window among the branches
  const CausalForwardParams& forward = params.forward;
  const AttentionShape& shape = forward.shape;
  Carver carver(workspace_bytes);
  const Workspace workspace(shape, carver);
  BackwardPrepareParams prepare = {
      .shape = shape, .d_out = params.d_out, .gates = nullptr, .d_gates = nullptr};
  prepare.branch_out[kOnly] = forward.out;
  prepare.branch_lse[kOnly] = forward.lse;
  prepare.statistics[kOnly] = workspace.statistics;
  const BlockBackwardTensors tensors = {.q = forward.q,
                                        .k = forward.k,
                                        .v = forward.v,
                                        .d_out = params.d_out,
                                        .statistics = workspace.statistics};
  const bool whole = workspace.partial_dkv == nullptr;
  Sequence run;
  run.then([&] { return launch_backward_prepare(prepare, stream); });
  run.then([&] {
    return launch_tile_backward({.shape = shape,
                                 .range = KeyRange::kWindow,
                                 .window = kEverything,
                                 .token_end = shape.sequence,
                                 .tensors = tensors,
                                 .scale = forward.scale,
                                 .d_q = params.d_q},
                                stream);
  });
  run.then([&] {
    return launch_range_backward({.shape = shape,
                                  .range = KeyRange::kWindow,
                                  .window = kEverything,
                                  .token_end = shape.sequence,
                                  .tensors = tensors,
                                  .scale = forward.scale,
                                  .partial_dkv = workspace.partial_dkv,
                                  .d_k = whole ? params.d_k : nullptr,
                                  .d_v = whole ? params.d_v : nullptr},
                                 stream);
  });
  if (whole) return run.error();
  run.then([&] {
    return launch_reduce_key_gradient({.shape = shape,
                                       .keys = shape.sequence,
                                       .list_partial = nullptr,
                                       .segment_item_start = nullptr,
                                       .range_partial = workspace.partial_dkv,
                                       .range = KeyRange::kWindow,
                                       .window = kEverything,
                                       .token_end = shape.sequence,
                                       .d_k = params.d_k,
                                       .d_v = params.d_v,
                                       .d_k_fp32 = nullptr,
                                       .d_v_fp32 = nullptr},
                                      stream);
  });
  return run.error();
}

} // namespace nsa::kernels
