#pragma once
// Forward of the selected branch for listed (token, block) pairs, KV-major, on any GPU from compute
// capability 8.0. As launch_selected_forward: each pair gets one partial result, and launch_merge
// merges those of a token. Blocks are not joined, and CTAs do not claim units.

#include "nsa_model/kernels/selected_forward/selected_forward.h"

namespace nsa::kernels::portable {

// `packed` if serves_packed(shape), otherwise `partial_out` and `partial_lse`.
cudaError_t launch_list_attend(const SelectedForwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels::portable
