// Closed lists of words in API responses, rows of the ledger and messages; each list exists once. A
// program of another version may send further words, so most fields of these types are
// ChoiceOrText. Words are only added, never changed, because they are stored and scripts read them.
// Plain values.
#pragma once

#include "common/base/choice_or_text.h"

namespace nsa::wire {

enum class RunState : uint8_t {
  kQueued,     // waits for slots
  kStarting,   // has slots; not all of its ranks have started yet
  kRunning,    // all ranks have sent their hello
  kRestarting, // an attempt failed and is being ended, or the next one waits or starts
  kStopping,   // was asked to stop: checkpoint, then end
  kCompleted,
  kStopped,
  kFailed,
  kCancelled,
  kPaused,  // a gate paused it; it waits for a user to resume it
  kDamaged, // the ledger's rows no longer describe the run; a live run is never in this state
};
constexpr auto choice_names(RunState) {
  return names_of("queued", "starting", "running", "restarting", "stopping", "completed", "stopped",
                  "failed", "cancelled", "paused", "damaged");
}
constexpr bool has_ended(RunState state) {
  return state >= RunState::kCompleted;
}

// State of a run's gate: not evaluated yet, or the result of its newest window.
enum class GateState : uint8_t { kWaiting, kPassed, kFailed };
constexpr auto choice_names(GateState) {
  return names_of("waiting", "passed", "failed");
}

// Where a toggle's value comes from; kHost is the environment of nsad.
enum class ToggleOrigin : uint8_t { kDefault, kFile, kSet, kHost, kFallback };
constexpr auto choice_names(ToggleOrigin) {
  return names_of("default", "file", "--set", "host", "fallback");
}

enum class RankStatus : uint8_t { kStarting, kRunning, kExited, kKilled };
constexpr auto choice_names(RankStatus) {
  return names_of("starting", "running", "exited", "killed");
}

enum class CheckpointState : uint8_t { kUnverified, kVerified, kCorrupt, kDeleted };
constexpr auto choice_names(CheckpointState) {
  return names_of("unverified", "verified", "corrupt", "deleted");
}

// Lines of GET /v1/runs/{id}/follow. Any streamed response may end with kCutOff instead.
enum class LineType : uint8_t { kState, kEvent, kStep, kEvaluation, kCheckpoint, kEnd, kCutOff };
constexpr auto choice_names(LineType) {
  return names_of("state", "event", "step", "evaluation", "checkpoint", "end", "cut-off");
}

// kPosition: not a log line, but where reading continues (LogLine::position).
enum class LogStream : uint8_t { kStdout, kStderr, kPosition };
constexpr auto choice_names(LogStream) {
  return names_of("stdout", "stderr", "position");
}

enum class Severity : uint8_t { kInfo, kWarning, kError };
constexpr auto choice_names(Severity) {
  return names_of("info", "warning", "error");
}

// Kinds of events that a program checks for, and nsad's notes. Any other kind is defined only
// beside its struct (daemon/state/event.h, rank_messages.h), and is stored and shown unchanged.
enum class EventKind : uint8_t {
  kFirstStep,
  kHangFound,
  kRankError,
  kEvaluation,
  kCheckpoint,
  // between nsad, shim and ranks
  kAttemptPrepared,
  kRankStarted,
  kRankToggles,
  kRankMemory,
  kRankFinished,
  kRankExited,
  kTimerFired,
  kShimReleased,
  kRunClosed,
  // notes of nsad
  kAttemptFailed,
  kRestarting,
  kRecovered,
  kCheckpointRejected,
  kCheckpointFailed,
  kCheckpointsRecovered,
  kCheckpointCorrupt,
  kLossDiverged,
  kGatesUniform,
  kGateCollapse,
  kLossSpike,
  kLossBelowEntropy,
  kRungChanged,
  kRungKept,
  kProgramsChanged,
  kSetAside,
  kUnknownAttemptEnded,
  kRunChanged,
  kNotifyFailed,
  kJobSubmitted,
  kJobChanged,
};
constexpr auto choice_names(EventKind) {
  return names_of(
      "first_step", "hang_found", "rank_error", "evaluation", "checkpoint", "attempt_prepared",
      "rank_started", "rank_toggles", "rank_memory", "rank_finished", "rank_exited", "timer_fired",
      "shim_released", "run_closed", "attempt_failed", "restarting", "recovered",
      "checkpoint_rejected", "checkpoint_failed", "checkpoints_recovered", "checkpoint_corrupt",
      "loss_diverged", "gates_uniform", "gate_collapse", "loss_spike", "loss_below_entropy",
      "rung_changed", "rung_kept", "programs_changed", "set_aside", "unknown_attempt_ended",
      "run_changed", "notify_failed", "job_submitted", "job_changed");
}

// Why a rank's training ended without an error.
enum class FinishReason : uint8_t { kCompleted, kStopped };
constexpr auto choice_names(FinishReason) {
  return names_of("completed", "stopped");
}

// Action after a step whose loss or gradient is not finite.
enum class NonFiniteAction : uint8_t {
  kNone,     // the step was finite
  kSkip,     // leave the update out and continue with the next batch
  kRollBack, // restore weights and moments of the last good checkpoint, and continue with the next
             // batch
  kStop,     // end the run
  kReport,   // a held-out loss under the rule "skip": there is no update to leave out
};
constexpr auto choice_names(NonFiniteAction) {
  return names_of("none", "skip", "roll-back", "stop", "report");
}

// Result of a request in the audit log.
enum class RequestResult : uint8_t { kDone, kRefused };
constexpr auto choice_names(RequestResult) {
  return names_of("done", "refused");
}

// Records of metrics.jsonl. nsad's response with records ends with one of kind kEndOfRecords.
enum class RecordKind : uint8_t { kStep, kEvaluation, kNonFinite };
constexpr auto choice_names(RecordKind) {
  return names_of("step", "evaluation", "non_finite");
}
inline constexpr std::string_view kEndOfRecords = "end";

} // namespace nsa::wire
