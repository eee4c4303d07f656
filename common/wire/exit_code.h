// The meaning of a rank's exit codes: the contract between nsa-worker, the shim and nsad's restart
// policy. A rank that was ended by a signal has no such code.
#pragma once

#include "common/base/choice.h"

#include <cstdint>

namespace nsa::wire {

enum class RankExit : int {
  kDone = 0,           // finished all steps, or stopped on request after a checkpoint
  kFailed = 1,         // an error without its own code
  kUsage = 2,          // bad arguments or spec; a restart cannot help
  kData = 3,           // data missing, changed or unreadable
  kNonFinite = 4,      // loss or gradient not finite, and the rule says stop
  kOutOfMemory = 5,    // device memory
  kToggleMismatch = 6, // effective values differ from the requested ones
  kCheckpoint = 7,     // a checkpoint could not be written or read
  kPeerLost = 8,       // a collective failed because a peer was lost: a victim, not the cause
  kGraphs = 9,         // cuda.graphs = "auto", and a step cannot be captured; restart without
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
  kStopped, // a signal stopped a rank and nobody continued it
  kNonFinite,
  kPreemption,
  kSupervisor, // a fault of nsad: shim lost, daemon error
  kCrash,      // a signal or an unclassified error ended a rank
  kGraphs,     // CUDA graphs of "auto" cannot be captured
  kGate,       // a gate of the run file has stopped the run
};

constexpr auto choice_names(FailureClass) {
  return names_of("user-error", "data", "gpu-out-of-memory", "host-out-of-memory", "hardware",
                  "network", "hang", "stopped", "non-finite", "preemption", "supervisor", "crash",
                  "cuda-graphs", "gate");
}

} // namespace nsa::wire
