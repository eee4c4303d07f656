#pragma once
// A second stream for kernels that run beside those of the caller's, with the events that fork it
// off and join it again. One for each host thread and device, made when first asked for and kept to
// the end of the program, so that threads with streams of their own share no event. Everything is
// an event that a stream waits for: the host waits for nothing, and a stream capture takes both
// streams into its graph.
//
// Buffers need no care beyond the join: what the caller's stream does after it comes after both. A
// SideFork joins on every way out, so that a caller who goes on after a launch that failed neither
// races with the side nor holds a capture that cannot be ended.

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

class SideFork {
public:
  SideFork() = default;
  SideFork(const SideFork&) = delete;
  SideFork& operator=(const SideFork&) = delete;
  ~SideFork(); // joins what is forked; an error has been told by what came before

  // The side goes on behind what `stream` holds. May be called again, on the same stream, before
  // the join.
  cudaError_t fork(cudaStream_t stream);
  // The caller's stream goes on behind both.
  cudaError_t join();
  bool is_forked() const { return forked_; }
  const SideStream& side() const { return side_; }

private:
  SideStream side_;
  cudaStream_t from_ = nullptr;
  bool forked_ = false;
};

} // namespace nsa::kernels
