// What the state needs from the outside world. A command is pending as long as the state needs it,
// and carrying it out twice has the same effect as once. So after a crash pending_commands()
// derives the pending commands again, and nsad carries them out again.
#pragma once

#include "daemon/state/state.h"

#include <compare>
#include <string>
#include <vector>

namespace nsa::state {

enum class CommandKind {
  kReleaseSlots,     // for a run that is queued again; then SlotsReleased
  kAcquireSlots,     // leases `count` slots; then SlotsGranted
  kChooseCheckpoint, // the newest verified one; then CheckpointChosen
  // Without a token: AttemptPrepared. With a token: starts the shim; then ShimStarted, or
  // AttemptFailedToStart.
  kStartAttempt,
  kSupervise,    // stays connected to the attempt's shim; ShimLost if the shim has gone
  kTakeEvidence, // then EvidenceSaved
  kStopRanks,    // asks the ranks to stop
  kKillRanks,    //
  kReleaseShim,  // for an ended attempt; then ShimReleased
  kArmTimer,     // then TimerFired
  kCancelTimer,  //
  kCloseRun,     // writes the summary and frees the slots; then RunClosed
};
std::string_view command_name(CommandKind kind);

struct Command {
  CommandKind kind{};
  RunId run;
  AttemptNumber attempt = 0;
  int count = 0;                            // for kAcquireSlots
  spec::Device device = spec::Device::kCpu; // for kAcquireSlots
  std::string text;                         // token, evidence id, or the reason for killing ranks
  bool checkpoint = false;                  // for kStopRanks
  Timer timer;                              // for kArmTimer and kCancelTimer
  bool operator==(const Command&) const = default;
};

// "kill_ranks run=a attempt=1 reason=...", the form in scenarios and in the log.
std::string to_text(const Command& command);

// Slots that the run holds: one for each rank of the run file, so that it can climb back.
int slots_of(const Run& run);

// Slots that the run's next attempt may use. Slots in quarantine are left out, and slots of lost
// nodes come last.
std::vector<std::string> usable_slots(const Run& run);
bool has_slots_for(const Run& run, int ranks);
// The number of usable slots on nodes that are not lost.
int heard_slots(const Run& run);
bool has_heard_slots_for(const Run& run, int ranks);

// Runs that wait for slots, first come, first served.
std::vector<const Run*> queued_runs(const State& state);

// Every command that the state needs now, in the order of runs.
std::vector<Command> pending_commands(const State& state);

} // namespace nsa::state
