// What nsad knows about the runs that are open: plain values, changed by apply() only.
//
// A run is a sequence of attempts; an attempt is one start of all its ranks. Runs that have ended
// and been closed leave the state. The ledger still has them, and a resume brings them back by
// replaying their events. No I/O, no clock; wall times come from events.
#pragma once

#include "common/base/choice.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/progress/phase.h"
#include "common/spec/run_spec.h"
#include "common/wire/exit_code.h"
#include "common/wire/words.h"
#include "daemon/state/ladder.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::state {

using wire::EventKind;
using wire::has_ended;
using wire::RunState;
using wire::Severity;

enum class AttemptPhase : uint8_t {
  kChoosing,   // the checkpoint to resume from is being chosen
  kLaunching,  // the shim is being started; it may or may not exist
  kLive,       // the shim exists
  kSettling,   // a victim has died; its cause may appear within a short time
  kCollecting, // a hang was found; evidence is being taken
  kStopping,   // ranks were asked to leave
  kKilling,    // ranks are being killed
  kEnded,
};
constexpr auto choice_names(AttemptPhase) {
  return names_of("choosing", "launching", "live", "settling", "collecting", "stopping", "killing",
                  "ended");
}

struct Policy { // from [restart] and [hang] of the spec
  int max_restarts = 3;
  double window_seconds = 3600;
  int max_total_restarts = 10; // within kTotalWindow
  double delay_seconds = 2, max_delay_seconds = 60;
  int max_without_progress = 3;
  bool restart_on_hang = true;
  double evidence_seconds = 20;
  double stop_grace_seconds = 330;
  // A scheduler may take the run's nodes away at any time; the run has not failed then.
  bool preemption_is_free = false;
  uint64_t jitter_seed = 0;
  bool operator==(const Policy&) const = default;
};
inline constexpr Duration kTotalWindow = std::chrono::hours(24);

struct RankState {
  bool started = false, greeted = false, exited = false, finished = false;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
  int exit_code = -1, signal = 0;
  bool killed_by_shim = false;
  bool exit_known = true; // false: the shim was lost before it could report the exit
  int64_t exit_order = 0; // CLOCK_MONOTONIC ns at which the shim saw the end
  ChoiceOrText<wire::FinishReason> finish_reason;
  std::string error, error_next;
  std::optional<Rank> blamed_peer;
  bool operator==(const RankState&) const = default;
};

// How a rank hangs; the names are those of events and summaries.
enum class HangKind : uint8_t {
  kUnknown,
  kStopped,
  kDeadlocked,
  kSpinning,
  kSkippedCollective,
  kDataStall,
  kUninterruptible,
  kStuckCollective,
  kStuckDevice,
  kTraced,  // no hang: a debugger is attached, and its user wants the rank alive
  kNetwork, // no rank's fault: no data arrives between two nodes
};
constexpr auto choice_names(HangKind) {
  return names_of("", "stopped", "deadlocked", "spinning", "skipped-collective", "data-stall",
                  "uninterruptible", "stuck-collective", "stuck-device", "traced", "network");
}

struct HangFinding {
  std::string id; // id of its evidence
  Rank rank = 0;
  HangKind kind = HangKind::kUnknown;
  progress::Phase phase = progress::Phase::kStartUp;
  uint64_t step = 0;
  double detect_seconds = 0; // from the moment that progress stopped
  std::vector<std::string> witnesses;
  std::string nodes; // for kNetwork: "ant and bee"
  bool operator==(const HangFinding&) const = default;
};

struct Hang : HangFinding {
  AttemptNumber attempt = 0;
  WallTime found_at;
  std::string evidence_folder;
  double recover_seconds = -1; // from found to the first new step; -1: not yet
  bool observed_only = false;
  bool operator==(const Hang&) const = default;
};

// An error that the driver has reported on a rank's GPU while the attempt ran.
struct GpuError {
  Rank rank = 0;
  std::string uuid;
  uint64_t xid = 0;
  bool operator==(const GpuError&) const = default;
};

// The exit code that a rank announced, if it is a cause of its own and no other rank announced one
// before.
struct ToldCause {
  Rank rank = 0;
  int exit_code = 0; // a RankExit
  bool operator==(const ToldCause&) const = default;
};

struct Attempt {
  AttemptNumber number = 0;
  AttemptPhase phase = AttemptPhase::kChoosing;
  std::string token;
  uint64_t first_step = 0; // the step that it was resumed after; 0: from scratch
  std::string checkpoint_folder;
  std::string shim_boot_id;
  int64_t shim_pid = 0;
  uint64_t shim_start_time_ticks = 0;
  uint64_t shim_sequence = 0;                // last message of the shim that is part of this state
  std::map<size_t, uint64_t> part_sequences; // for the shims of other parts (parts.h)
  std::vector<RankState> ranks;
  std::vector<std::string> slots; // slots of the ranks, in rank order
  uint64_t committed_step = 0;    // newest checkpoint of this attempt
  bool host_out_of_memory = false;
  std::optional<GpuError> hardware_error; // the first error that means broken hardware
  std::optional<ToldCause> told;
  bool first_step_done = false;
  bool climbing = false;     // it stops at a checkpoint, to try the settings above
  bool hang_pending = false; // run.hangs.back() is what ends this attempt
  std::string kill_reason;
  // Set if the class is known before the ranks have ended.
  std::optional<wire::FailureClass> failure;
  std::string failure_text;
  WallTime started_at, ended_at;
  bool operator==(const Attempt&) const = default;
};

// Failures since the last checkpoint that was written.
struct FailedCheckpoints {
  int count = 0;
  uint64_t last_step = 0;
  std::string why; // reason of the last failure
  bool operator==(const FailedCheckpoints&) const = default;
};

enum class TimerKind : uint8_t { kBackoff, kSettle, kEvidence, kStopGrace };
constexpr auto choice_names(TimerKind) {
  return names_of("backoff", "settle", "evidence", "stop_grace");
}

struct Timer {
  TimerKind kind = TimerKind::kBackoff;
  WallTime due;
  Duration delay{}; // due minus the time of arming; it bounds the wait if the wall clock jumps
  bool operator==(const Timer&) const = default;
};

struct Restart {
  wire::FailureClass failure = wire::FailureClass::kCrash;
  WallTime at;
  bool operator==(const Restart&) const = default;
};

// The gate that makes a run leave, and why.
struct GateStop {
  spec::GateAction action = spec::GateAction::kWarn;
  std::string text;
  bool operator==(const GateStop&) const = default;
};

// Checkpoints that a resume has skipped: those that attempts up to `attempt` wrote after `step`.
struct LeftBehind {
  AttemptNumber attempt = 0;
  uint64_t step = 0;
  bool operator==(const LeftBehind&) const = default;
};

struct Run {
  RunId id;
  int64_t order = 0; // queue position: first come, first served
  RunState phase = RunState::kQueued;
  std::string reason;                       // one clause for people
  int ranks = 1;                            // ranks of the newest attempt, or of the next one
  spec::Device device = spec::Device::kCpu; // never kAuto
  Policy policy;
  spec::Ladder ladder;            // without rungs a restart repeats the same settings
  Standing standing;              // position on the ladder
  std::vector<std::string> slots; // one for each rank of the run file; on a rung some stay empty
  // GPUs among these slots that are in quarantine and that no attempt gets, and why.
  std::map<std::string, std::string> quarantine;
  // Nodes of these slots that were lost and are not connected again. A rung with fewer ranks does
  // without them, and the settings above wait for them.
  std::set<std::string> away;
  std::map<std::string, int> deaths;  // GPU -> newest attempts in a row that died on it
  bool requeued = false;              // its next slots are for a restart, not for a resume
  Attempt attempt;                    // the newest attempt; number 0: none yet
  std::set<AttemptNumber> unreleased; // ended attempts whose shim has not been released
  std::vector<Restart> restarts;      // automatic restarts, oldest first
  int resumes = 0;                    // attempts that a person began; they do not count as restarts
  int climbs = 0; // attempts that began to try the settings above; they do not count as restarts
  int without_progress = 0;  // failed attempts in a row without a new checkpoint
  uint64_t best_step = 0;    // newest checkpoint of all attempts
  uint64_t reached_step = 0; // lower bound of the newest attempt's step, from checkpoints and ends
  FailedCheckpoints failed_checkpoints;
  std::vector<LeftBehind> left_behind;
  std::set<std::string> replaced_data; // digests of data sets that checkpoints may still name
  std::vector<Hang> hangs;
  bool stop_requested = false, stop_with_checkpoint = true, cancel_requested = false;
  std::optional<GateStop> gate; // the gate by which the run ended or is about to end
  // If not empty, attempts start without CUDA graphs: the attempt that could not record them, and
  // why.
  std::string without_graphs;
  std::optional<Timer> timer;
  WallTime submitted_at, started_at, ended_at;
  bool operator==(const Run&) const = default;
};

struct State {
  std::map<RunId, Run> runs;
  int64_t next_order = 1;
  bool operator==(const State&) const = default;
};

} // namespace nsa::state
