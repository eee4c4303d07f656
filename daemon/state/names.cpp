#include "daemon/state/state.h"

namespace nsa::state {

std::string_view run_phase_name(RunPhase phase) {
  switch (phase) {
  case RunPhase::kQueued:
    return "queued";
  case RunPhase::kStarting:
    return "starting";
  case RunPhase::kRunning:
    return "running";
  case RunPhase::kRestarting:
    return "restarting";
  case RunPhase::kStopping:
    return "stopping";
  case RunPhase::kCompleted:
    return "completed";
  case RunPhase::kStopped:
    return "stopped";
  case RunPhase::kFailed:
    return "failed";
  case RunPhase::kCancelled:
    return "cancelled";
  }
  return "unknown";
}

std::string_view attempt_phase_name(AttemptPhase phase) {
  switch (phase) {
  case AttemptPhase::kChoosing:
    return "choosing";
  case AttemptPhase::kLaunching:
    return "launching";
  case AttemptPhase::kLive:
    return "live";
  case AttemptPhase::kSettling:
    return "settling";
  case AttemptPhase::kCollecting:
    return "collecting";
  case AttemptPhase::kStopping:
    return "stopping";
  case AttemptPhase::kKilling:
    return "killing";
  case AttemptPhase::kEnded:
    return "ended";
  }
  return "unknown";
}

std::string_view timer_name(TimerKind kind) {
  switch (kind) {
  case TimerKind::kBackoff:
    return "backoff";
  case TimerKind::kSettle:
    return "settle";
  case TimerKind::kEvidence:
    return "evidence";
  case TimerKind::kStopGrace:
    return "stop_grace";
  }
  return "unknown";
}

} // namespace nsa::state
