#pragma once
// Binds a schedule's buffers and the caller's tensors to addresses, and launches each node with
// them. Host code, one call, one thread.

#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/fused/schedule.h"
#include "nsa_model/kernels/fused/workspace.h"
#include "nsa_model/kernels/selected_forward/selected_forward.h"

namespace nsa::kernels {

struct Bindings {
  const FusedInputs& inputs;
  const FusedSaved& saved;
  __nv_bfloat16* out = nullptr;              // forward only
  const FusedGradients* gradients = nullptr; // backward only
  const SelectedPlan& plan;
  ScratchLayout layout;
  Lists lists;
  void* parts[3] = {}; // address of each ScratchPart

  Bindings(const Schedule& schedule, const FusedInputs& of, const FusedSaved& kept);

  // nullptr if the schedule does not use the buffer or it has no bytes.
  template <typename T> T* scratch(Buffer buffer) const {
    const ScratchLayout::Extent& place = layout.places[static_cast<std::size_t>(buffer)];
    char* part = static_cast<char*>(parts[static_cast<std::size_t>(place.part)]);
    return place.bytes == 0 ? nullptr : reinterpret_cast<T*>(part + place.offset);
  }
  bool is_on(int branch) const { return inputs.k[branch] != nullptr; }
  float* statistics(int branch) const {
    return scratch<float>(of_branch(Buffer::kCompressedStatistics, branch));
  }
  __nv_bfloat16* branch_out(int branch) const {
    return is_on(branch) ? saved.branch_out[branch] : nullptr;
  }
};

cudaError_t launch_hopper_node(const Bindings& bound, const Node& node, cudaStream_t stream,
                               cudaEvent_t launched);
cudaError_t launch_portable_node(const Bindings& bound, const Node& node, cudaStream_t stream);

// Launches that both families share.
cudaError_t launch_pooling(const Bindings& bound, cudaStream_t stream);
cudaError_t launch_pooling_backward(const Bindings& bound, cudaStream_t stream);
cudaError_t launch_given_indices(const Bindings& bound, cudaStream_t stream);
cudaError_t launch_block_lists(const Bindings& bound, cudaStream_t stream);
SelectedForwardParams selected_forward_params(const Bindings& bound, const Node& node);
cudaError_t launch_merge(const Bindings& bound, const Node& node, cudaStream_t stream);
cudaError_t launch_merge_query_gradient(const Bindings& bound, const Node& node,
                                        cudaStream_t stream);
// Statistics of every row and the gates' gradients. `indices` is for tokens under masks, or
// nullptr.
BackwardPrepareParams prepare_params(const Bindings& bound, const int32_t* indices);

} // namespace nsa::kernels
