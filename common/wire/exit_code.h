// What a rank's exit code means: the contract between nsa-worker, the shim and nsad's restart
// policy. A rank that a signal ended has no such code.
#pragma once

#include <cstdint>
#include <string_view>

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
enum class FailureClass : int {
  kUserError = 0,
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
};

constexpr std::string_view failure_class_name(FailureClass c) {
  switch (c) {
  case FailureClass::kUserError:
    return "user-error";
  case FailureClass::kData:
    return "data";
  case FailureClass::kGpuOutOfMemory:
    return "gpu-out-of-memory";
  case FailureClass::kHostOutOfMemory:
    return "host-out-of-memory";
  case FailureClass::kHardware:
    return "hardware";
  case FailureClass::kNetwork:
    return "network";
  case FailureClass::kHang:
    return "hang";
  case FailureClass::kStopped:
    return "stopped";
  case FailureClass::kNonFinite:
    return "non-finite";
  case FailureClass::kPreemption:
    return "preemption";
  case FailureClass::kSupervisor:
    return "supervisor";
  case FailureClass::kCrash:
    return "crash";
  case FailureClass::kGraphs:
    return "cuda-graphs";
  }
  return "unknown";
}

} // namespace nsa::wire
