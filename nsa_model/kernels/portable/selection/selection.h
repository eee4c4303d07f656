#pragma once
// Selects blocks on any GPU from compute capability 8.0, with the parameters of the Hopper family's
// launcher.

#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels::portable {

// Does the same as nsa::kernels::launch_selection.
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream);
// Shared memory of its CTAs. For long sequences it exceeds the 99 KiB of some GPUs.
int selection_shared_bytes(const AttentionShape& shape);

} // namespace nsa::kernels::portable
