#pragma once
// Enqueues a schedule's nodes, one after another, each on its stream behind what it waits for. The
// streams are one again on every way out. Nothing waits for the device. Any thread; the side stream
// is the thread's own.

#include <functional>

#include "nsa_model/kernels/fused/schedule.h"

namespace nsa::kernels {

// Launches one node on `stream`; `launched`, unless nullptr, is to be recorded when all its CTAs
// have their places.
using LaunchNode =
    std::function<cudaError_t(const Node& node, cudaStream_t stream, cudaEvent_t launched)>;

// `begin_lists` is called before the node from which ScratchPart::kLists is in use, where there is
// one. Ends with the first error.
cudaError_t run_schedule(const Schedule& schedule, const LaunchNode& launch,
                         const std::function<void()>& begin_lists, cudaStream_t stream);

} // namespace nsa::kernels
