#pragma once
// A second stream for kernels that run beside those of the caller's, with the events that fork it
// off and join it again. One for each host thread and device, made when first asked for and kept to
// the end of the program, so that threads with streams of their own share no event. Everything is
// an event that a stream waits for: the host waits for nothing, and a stream capture takes both
// streams into its graph.
//
// Buffers need no care beyond the join: what the caller's stream does after it comes after both.

#include <cuda_runtime_api.h>

namespace nsa::kernels {

struct SideStream {
  cudaStream_t stream = nullptr;
  cudaEvent_t ready = nullptr;    // of the caller's stream: what the side's kernels read is written
  cudaEvent_t launched = nullptr; // a kernel of the caller's stream has all its CTAs in place
  cudaEvent_t done = nullptr;     // of the side
};

// The current device's, of this thread.
cudaError_t side_stream(SideStream& side);

} // namespace nsa::kernels
