#pragma once
// Selection of blocks on any GPU from compute capability 8.0, with the parameters of the Hopper
// family's.

#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels::portable {

// As nsa::kernels::launch_selection.
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream);
// Shared memory that a CTA of it takes: more than the 99 KiB of some GPUs for long sequences.
int selection_shared_bytes(const AttentionShape& shape);

} // namespace nsa::kernels::portable
