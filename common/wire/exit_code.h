// What a rank's exit code means: the contract between nsa-worker, the shim and nsad's restart
// policy. A rank that a signal ended has no such code.
#pragma once

#include "common/base/choice.h"

#include <cstdint>

namespace nsa::wire {

enum class RankExit : int {
  kDone = 0,           // finished all steps, or stopped on request after a checkpoint
  kFailed = 1,         // an error without a class of its own
  kUsage = 2,          // bad arguments or spec: restarting cannot help
  kData = 3,           // data missing, changed or unreadable
  kNonFinite = 4,      // loss or gradient not finite, and the rule says stop
  kOutOfMemory = 5,    // device memory
  kToggleMismatch = 6, // what is in effect is not what was requested
  kCheckpoint = 7,     // a checkpoint could not be written or read
  kPeerLost = 8,       // a collective failed because a peer went away: a victim, not a cause
  kGraphs = 9,         // cuda.graphs = "auto", and a step cannot be recorded: start again without
};

// Failure classes of the restart policy (design 4.6).
enum class FailureClass : uint8_t {
  kUserError,
  kData,
  kGpuOutOfMemory,
  kHostOutOfMemory,
  kHardware,
  kNetwork,
  kHang,
  kStopped, // a rank was stopped by a signal and nobody continued it
  kNonFinite,
  kPreemption,
  kSupervisor, // our own fault: shim lost, daemon error
  kCrash,      // a rank died by a signal or an unclassified error
  kGraphs,     // CUDA graphs that nobody insists on cannot be recorded
  kGate,       // a gate of the run file has stopped it
};

constexpr auto choice_names(FailureClass) {
  return names_of("user-error", "data", "gpu-out-of-memory", "host-out-of-memory", "hardware",
                  "network", "hang", "stopped", "non-finite", "preemption", "supervisor", "crash",
                  "cuda-graphs", "gate");
}

} // namespace nsa::wire
