#pragma once
// Enqueues a schedule's nodes in order, each on its stream after its waits. The streams are joined
// on every return path. The host never waits for the device. Any thread; each thread has its own
// side stream.

#include <functional>

#include "nsa_model/kernels/fused/schedule.h"

namespace nsa::kernels {

// Launches one node on `stream`. `launched`, unless nullptr, must be recorded after all its CTAs
// have started.
using LaunchNode =
    std::function<cudaError_t(const Node& node, cudaStream_t stream, cudaEvent_t launched)>;

// `begin_lists` is called before the node from which ScratchPart::kLists is in use, if there is
// one. Stops at the first error.
cudaError_t run_schedule(const Schedule& schedule, const LaunchNode& launch,
                         const std::function<void()>& begin_lists, cudaStream_t stream);

} // namespace nsa::kernels
