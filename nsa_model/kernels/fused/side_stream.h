#pragma once
// A second stream for kernels that run beside those of the caller's stream, with the events that
// fork and join it. There is one for each host thread and device, created on first use and kept to
// the end of the program. So threads with their own streams share no event. All synchronisation is
// by events that a stream waits for. The host never waits, and a stream capture includes both
// streams in its graph.
//
// Buffers need no care beyond the join, because later work on the caller's stream comes after both
// streams. A SideFork joins on every return path. So a caller that continues after a failed launch
// does not race with the side stream, and its capture can be ended.

#include <cuda_runtime_api.h>

namespace nsa::kernels {

struct SideStream {
  cudaStream_t stream = nullptr;
  // Recorded on the caller's stream: the inputs of the side's kernels are written.
  cudaEvent_t ready = nullptr;
  cudaEvent_t launched = nullptr; // a kernel of the caller's stream has started all its CTAs
  cudaEvent_t done = nullptr;     // of the side stream
};

// Returns the side stream of this thread for the current device.
cudaError_t side_stream(SideStream& side);

class SideFork {
public:
  SideFork() = default;
  SideFork(const SideFork&) = delete;
  SideFork& operator=(const SideFork&) = delete;
  ~SideFork(); // joins a forked stream; earlier calls have reported errors

  // The side stream continues after the work on `stream`. It may be called again on the same stream
  // before the join.
  cudaError_t fork(cudaStream_t stream);
  // The caller's stream continues after both.
  cudaError_t join();
  bool is_forked() const { return forked_; }
  const SideStream& side() const { return side_; }

private:
  SideStream side_;
  cudaStream_t from_ = nullptr;
  bool forked_ = false;
};

} // namespace nsa::kernels
