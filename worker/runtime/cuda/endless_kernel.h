// A fault on purpose: a kernel that never ends.
#pragma once

#include <cuda_runtime_api.h>

namespace nsa::runtime {

// Enqueues it: nothing behind it in the stream begins. It occupies one thread of one
// multiprocessor. Only the end of the process ends it.
cudaError_t launch_endless_kernel(cudaStream_t stream);

} // namespace nsa::runtime
