// All events of a run, as values with JSON bodies. The ledger keeps them in order; replaying them
// through apply() rebuilds the state. A message of a rank is stored as its wire message. kKind is
// the event's name in the ledger and never changes.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/wire/messages.h"
#include "daemon/state/state.h"

#include <variant>

namespace nsa::state {

struct Submitted {
  static constexpr std::string_view kKind = "submitted";
  int ranks = 1;
  spec::Device device = spec::Device::kCpu;
  std::string user, name;
  Policy policy;
  spec::Ladder ladder;
};
struct SlotsGranted {
  static constexpr std::string_view kKind = "slots_granted";
  std::vector<std::string> slots;
};
struct RejectedCheckpoint {
  uint64_t step = 0;
  std::string folder, problem;
};
struct SlotsReleased { // the run is queued again
  static constexpr std::string_view kKind = "slots_released";
};
struct GpuQuarantined { // the run holds the GPU, and none of its ranks used it
  static constexpr std::string_view kKind = "gpu_quarantined";
  std::string uuid, why;
};
struct GpuReleased { // a person has released the GPU from quarantine
  static constexpr std::string_view kKind = "gpu_released";
  std::string uuid, by;
};
struct CheckpointChosen {
  static constexpr std::string_view kKind = "checkpoint_chosen";
  uint64_t step = 0; // 0: from scratch
  std::string folder;
  std::vector<RejectedCheckpoint> rejected;
};
struct AttemptPrepared { // the intent, committed before anything is started
  static constexpr std::string_view kKind = name_of(wire::EventKind::kAttemptPrepared);
  std::string token;
  nlohmann::json spec; // the whole spec that this attempt runs
};
struct ShimStarted {
  static constexpr std::string_view kKind = "shim_started";
  std::string boot_id;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
};
struct ShimAdopted {
  static constexpr std::string_view kKind = "shim_adopted";
  double seconds = 0; // counted from this nsad's start
};
// The shim has gone and its ranks have been killed. The contents of exit files were applied before.
struct ShimLost {
  static constexpr std::string_view kKind = "shim_lost";
  std::string why;
};
// The head has lost the connection to a node, and the ranks on other nodes wait for those on it.
struct NodeLost {
  static constexpr std::string_view kKind = "node_lost";
  std::string node, why;
};
struct NodeBack { // the node is connected again
  static constexpr std::string_view kKind = "node_back";
  std::string node;
};
// The shim of one of several nodes has gone, and its ranks with it.
struct PartLost {
  static constexpr std::string_view kKind = "part_lost";
  std::string node, why;
  Rank first_rank = 0;
  int ranks = 0;
};
struct ShimReleased {
  static constexpr std::string_view kKind = name_of(wire::EventKind::kShimReleased);
};
struct AttemptFailedToStart {
  static constexpr std::string_view kKind = "start_failed";
  std::string what;
  bool permanent = false; // a retry cannot help
};
struct HostOutOfMemory { // the kernel's counter of OOM kills has grown while the ranks ran
  static constexpr std::string_view kKind = "host_out_of_memory";
  uint64_t kills = 0;
};
struct GpuFault { // the driver has reported an error on a rank's GPU
  static constexpr std::string_view kKind = "gpu_fault";
  Rank rank = 0;
  std::string uuid;
  uint64_t xid = 0;
};
struct FirstStep {
  static constexpr std::string_view kKind = name_of(wire::EventKind::kFirstStep);
  uint64_t step = 0;
};
struct HangFound : HangFinding {
  static constexpr std::string_view kKind = name_of(wire::EventKind::kHangFound);
};
struct HangWithdrawn {
  static constexpr std::string_view kKind = "hang_withdrawn";
  std::string why;
};
// A debugger is attached to a rank that makes no progress. nsad only observes the rank; this does
// not count as a hang.
struct DebuggerAttached {
  static constexpr std::string_view kKind = "debugger_attached";
  Rank rank = 0;
  int64_t pid = 0; // pid of the debugger
  std::string name;
  progress::Phase phase = progress::Phase::kStartUp;
  uint64_t step = 0;
  double seconds = 0; // time without progress
};
struct DebuggerGone { // the debugger has gone, or the rank moves again
  static constexpr std::string_view kKind = "debugger_gone";
  Rank rank = 0;
};
struct SlowStep { // an alert, never a reason to kill
  static constexpr std::string_view kKind = "slow_step";
  Rank rank = 0;
  progress::Phase phase = progress::Phase::kStartUp;
  uint64_t step = 0;
  double seconds = 0, limit_seconds = 0;
};
struct EvidenceSaved {
  static constexpr std::string_view kKind = "evidence_saved";
  std::string id, folder, error;
  HangKind kind = HangKind::kUnknown; // the kind of the verdict, refined by the stacks
  double seconds = 0;
  std::vector<std::string> findings;
};
// The verdict of a gate has changed in this attempt, or is its first.
struct GateJudged {
  static constexpr std::string_view kKind = "gate_judged";
  std::string name;
  spec::GateMetric metric = spec::GateMetric::kTokensPerSecond;
  spec::GateAction action = spec::GateAction::kWarn;
  bool passed = false;
  std::string text;                               // value, bound and window
  std::optional<double> value, at_least, at_most; // no value: the metric was missing
  uint64_t first_step = 0, last_step = 0;
};
struct TimerFired {
  static constexpr std::string_view kKind = name_of(wire::EventKind::kTimerFired);
  ChoiceOrText<TimerKind> timer;
};
struct StopRequested {
  static constexpr std::string_view kKind = "stop_requested";
  std::string by;
  bool checkpoint = true;
};
struct CancelRequested {
  static constexpr std::string_view kKind = "cancel_requested";
  std::string by;
};
struct ResumeRequested {
  static constexpr std::string_view kKind = "resume_requested";
  std::string by;
  std::vector<std::string> overrides;
  int ranks = 1;
  spec::Device device = spec::Device::kCpu;
  Policy policy;
  // Resume from this checkpoint and leave newer ones behind; -1: the newest.
  int64_t from_step = -1;
  std::string exactness;     // what is exactly as in an undisturbed run, and what is not
  std::string replaced_data; // digest of the data set that another one replaces
  spec::Ladder ladder;       // if the ladder is unchanged, the run stays on its rungs
};
struct RunRecovered { // nsad has found a live shim whose attempt the ledger does not know
  static constexpr std::string_view kKind = "run_recovered";
  int ranks = 1;
  spec::Device device = spec::Device::kCpu;
  std::string user, name;
  Policy policy;
  std::vector<std::string> slots;
  std::string token;
  uint64_t first_step = 0, best_step = 0;
  std::string checkpoint_folder;
  std::string boot_id;
  int64_t shim_pid = 0;
  uint64_t shim_start_time_ticks = 0;
  spec::Ladder ladder;
  std::vector<int> rungs; // rungs in effect; `ranks` is the number of ranks on them
  ChoiceOrText<wire::FailureClass> rung_taken_after; // empty: unknown, or a climb
};
// The shim has forgotten messages that another nsad had stored in a ledger that is lost.
struct MessagesLost {
  static constexpr std::string_view kKind = "messages_lost";
  uint64_t first = 0, last = 0;
  std::vector<wire::RankIdentity> ranks; // ranks as the shim sees them now
};
struct RunClosed { // the summary is written and the slots are free: the run leaves the state
  static constexpr std::string_view kKind = name_of(wire::EventKind::kRunClosed);
};

// A rank's messages come after nsad's own events and those of the shim.
using EventBody = wire::RankEvents::VariantAfter<
    Submitted, SlotsGranted, CheckpointChosen, AttemptPrepared, ShimStarted, ShimAdopted, ShimLost,
    ShimReleased, AttemptFailedToStart, HostOutOfMemory, FirstStep, HangFound, HangWithdrawn,
    DebuggerAttached, DebuggerGone, SlowStep, EvidenceSaved, TimerFired, StopRequested,
    CancelRequested, ResumeRequested, RunClosed, wire::RankStarted, wire::RankExited,
    wire::LogDropped, GpuFault, wire::Refused, RunRecovered, MessagesLost, GateJudged,
    SlotsReleased, GpuQuarantined, GpuReleased, NodeLost, PartLost, NodeBack>;

struct Event {
  RunId run;
  AttemptNumber attempt = 0;  // 0: not about an attempt
  uint64_t shim_sequence = 0; // number of the shim's message; repeated messages are ignored
  EventBody body;
};

// "rank_exited", "hang_found", ...: stable names, which `nsactl events` shows.
std::string_view event_kind(const EventBody& body);
Rank event_rank(const EventBody& body); // -1: not about one rank
nlohmann::json body_to_json(const EventBody& body);
// Fails with kInvalidArgument for an unknown kind, and with kCorrupt for a body of the wrong shape.
Result<EventBody> body_from_json(std::string_view kind, const nlohmann::json& json);

void to_json(nlohmann::json& j, const Policy& p);
void from_json(const nlohmann::json& j, Policy& p);

} // namespace nsa::state
