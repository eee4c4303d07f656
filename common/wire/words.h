// Closed lists of words in answers of the API, rows of the ledger and messages: each list once.
// A program of another version may send more words, so most fields of these types are ChoiceOrText.
// Words are only ever added; what is stored and scripts read does not change. Pure values.
#pragma once

#include "common/base/choice_or_text.h"

namespace nsa::wire {

enum class RunState : uint8_t {
  kQueued,     // waits for slots
  kStarting,   // has slots; its ranks are not all up yet
  kRunning,    // all ranks have said hello
  kRestarting, // an attempt failed and is being taken down, or the next one waits or comes up
  kStopping,   // asked to leave: checkpoint, then end
  kCompleted,
  kStopped,
  kFailed,
  kCancelled,
  kPaused,  // by a gate: it waits for a person, who resumes it
  kDamaged, // the ledger's rows do not give the run any more; no live run is ever in it
};
constexpr auto choice_names(RunState) {
  return names_of("queued", "starting", "running", "restarting", "stopping", "completed", "stopped",
                  "failed", "cancelled", "paused", "damaged");
}
constexpr bool has_ended(RunState state) {
  return state >= RunState::kCompleted;
}

// A gate of a run: not judged yet, or how its newest window was judged.
enum class GateState : uint8_t { kWaiting, kPassed, kFailed };
constexpr auto choice_names(GateState) {
  return names_of("waiting", "passed", "failed");
}

// Who gave a toggle its value; kHost: the environment of nsad.
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

// Lines of GET /v1/runs/{id}/follow. Any streamed answer may end with kCutOff instead.
enum class LineType : uint8_t { kState, kEvent, kStep, kEvaluation, kCheckpoint, kEnd, kCutOff };
constexpr auto choice_names(LineType) {
  return names_of("state", "event", "step", "evaluation", "checkpoint", "end", "cut-off");
}

// kPosition: no line of the log, but where the reading of it goes on (LogLine::position).
enum class LogStream : uint8_t { kStdout, kStderr, kPosition };
constexpr auto choice_names(LogStream) {
  return names_of("stdout", "stderr", "position");
}

enum class Severity : uint8_t { kInfo, kWarning, kError };
constexpr auto choice_names(Severity) {
  return names_of("info", "warning", "error");
}

// Kinds of events that a program asks for, and nsad's notes. Any other kind stands beside its
// struct alone (daemon/state/event.h, rank_messages.h): it is stored and shown as it is.
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
  // notes
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

// Why a rank's training has ended well.
enum class FinishReason : uint8_t { kCompleted, kStopped };
constexpr auto choice_names(FinishReason) {
  return names_of("completed", "stopped");
}

// After a step whose loss or gradient is not finite.
enum class NonFiniteAction : uint8_t {
  kNone,     // the step was finite
  kSkip,     // leave the update out and go on with the next batch
  kRollBack, // take the weights and moments of the last good checkpoint, go on with the next batch
  kStop,     // end the run
  kReport,   // a held-out loss under the rule "skip": there is no update to leave out
};
constexpr auto choice_names(NonFiniteAction) {
  return names_of("none", "skip", "roll-back", "stop", "report");
}

// What came of a request that the audit has.
enum class RequestResult : uint8_t { kDone, kRefused };
constexpr auto choice_names(RequestResult) {
  return names_of("done", "refused");
}

// Records of metrics.jsonl. nsad's answer with them ends with one of the kind kEndOfRecords.
enum class RecordKind : uint8_t { kStep, kEvaluation, kNonFinite };
constexpr auto choice_names(RecordKind) {
  return names_of("step", "evaluation", "non_finite");
}
inline constexpr std::string_view kEndOfRecords = "end";

} // namespace nsa::wire
