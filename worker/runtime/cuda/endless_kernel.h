// Fault injection: a kernel that never ends.
#pragma once

#include <cuda_runtime_api.h>

namespace nsa::runtime {

// Enqueues the kernel, after which no work in the stream starts. It occupies one thread of one SM.
// Only the end of the process ends it.
cudaError_t launch_endless_kernel(cudaStream_t stream);

} // namespace nsa::runtime
