#pragma once
// The whole attention for GPUs without Hopper's instructions, and for heads of 128 dimensions on
// any: the same inputs, results and rules as fused/fused.h, which calls this for
// KernelFamily::kPortable. It needs compute capability 8.0. Nothing is allocated and nothing waits
// for the device.

#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels::portable {

std::size_t backward_workspace_bytes(const AttentionShape& shape); // the forward needs none

cudaError_t launch_forward(const FusedInputs& inputs, const FusedSaved& saved, __nv_bfloat16* out,
                           cudaStream_t stream);
cudaError_t launch_backward(const FusedInputs& inputs, const FusedSaved& saved,
                            const FusedGradients& gradients, void* workspace, cudaStream_t stream);

} // namespace nsa::kernels::portable
