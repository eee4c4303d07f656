#include "nsa_model/kernels/fused/fused.h"

#include "nsa_model/kernels/fused/bindings.h"
#include "nsa_model/kernels/fused/run_schedule.h"
#include "nsa_model/kernels/fused/schedule.h"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels {
namespace {

AttentionCall every_branch(const AttentionShape& shape, const FusedTuning& tuning) {
  AttentionCall call = {.shape = shape, .tuning = tuning};
  if (call.is_portable()) return call;
  call.multiprocessors = range_workers();
  call.score_bytes = selection_score_bytes(shape);
  return call;
}

std::size_t bytes_of(const AttentionCall& call, Pass pass) {
  return lay_out(schedule_of(call, pass)).all();
}

cudaError_t run(const Schedule& schedule, Bindings& bound, const ScratchOf& scratch,
                cudaStream_t stream) {
  const auto place = [&](ScratchPart part) {
    const auto index = static_cast<std::size_t>(part);
    const std::size_t bytes = bound.layout.bytes[index];
    if (bytes > 0) bound.parts[index] = scratch(part, bytes);
  };
  place(ScratchPart::kKept);
  place(ScratchPart::kStart);
  const bool portable = schedule.call.is_portable();
  return run_schedule(
      schedule,
      [&](const Node& node, cudaStream_t own, cudaEvent_t launched) {
        return portable ? launch_portable_node(bound, node, own)
                        : launch_hopper_node(bound, node, own, launched);
      },
      [&] { place(ScratchPart::kLists); }, stream);
}

// Places all parts in one workspace, in the layout that ScratchLayout::all() counts.
ScratchOf parts_of(void* workspace, const ScratchLayout& layout) {
  char* base = static_cast<char*>(workspace);
  const std::size_t kept = layout.bytes[static_cast<std::size_t>(ScratchPart::kKept)];
  return [=](ScratchPart part, std::size_t) -> void* {
    return part == ScratchPart::kKept ? base : base + kept;
  };
}

} // namespace

std::size_t fused_list_bytes(const AttentionShape& shape) {
  Carver carver(nullptr);
  Lists lists(shape, carver);
  return carver.used();
}

std::size_t fused_forward_workspace_bytes(const FusedInputs& inputs) {
  return bytes_of(call_of(inputs), Pass::kForward);
}
std::size_t fused_forward_workspace_bytes(const AttentionShape& shape, const FusedTuning& tuning) {
  return bytes_of(every_branch(shape, tuning), Pass::kForward);
}
std::size_t fused_backward_workspace_bytes(const FusedInputs& inputs) {
  return bytes_of(call_of(inputs), Pass::kBackward);
}
std::size_t fused_backward_workspace_bytes(const AttentionShape& shape, const FusedTuning& tuning) {
  return bytes_of(every_branch(shape, tuning), Pass::kBackward);
}

cudaError_t launch_fused_forward(const FusedInputs& inputs, const FusedSaved& saved,
                                 __nv_bfloat16* out, void* workspace, cudaStream_t stream) {
  const AttentionCall call = call_of(inputs);
  if (call.on[kSelected] && !call.on[kCompressed] && call.blocks == BlockSource::kSelection)
    return cudaErrorInvalidValue; // there are no scores to select them by
  if (call.shape.head_dim != kHeadDim && call.shape.head_dim != kWideHeadDim)
    return cudaErrorInvalidValue;
  const Schedule schedule = schedule_of(call, Pass::kForward);
  Bindings bound(schedule, inputs, saved);
  bound.out = out;
  return run(schedule, bound, parts_of(workspace, bound.layout), stream);
}

cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, const ScratchOf& scratch,
                                  cudaStream_t stream) {
  const Schedule schedule = schedule_of(call_of(inputs), Pass::kBackward);
  Bindings bound(schedule, inputs, saved);
  bound.gradients = &gradients;
  return run(schedule, bound, scratch, stream);
}

cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, void* workspace,
                                  cudaStream_t stream) {
  const Schedule schedule = schedule_of(call_of(inputs), Pass::kBackward);
  Bindings bound(schedule, inputs, saved);
  bound.gradients = &gradients;
  return run(schedule, bound, parts_of(workspace, bound.layout), stream);
}

} // namespace nsa::kernels
