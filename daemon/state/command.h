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
  kReleaseSlots,     // of a run that is queued again; then SlotsReleased
  kAcquireSlots,     // lease count slots; then SlotsGranted
  kChooseCheckpoint, // newest verified one; then CheckpointChosen
  kStartAttempt,     // without a token: AttemptPrepared. With it: the shim, then ShimStarted, or
                     // AttemptFailedToStart
  kSupervise,        // stay connected to the attempt's shim; ShimLost if it is gone
  kTakeEvidence,     // then EvidenceSaved
  kStopRanks,        // gently
  kKillRanks,        //
  kReleaseShim,      // of an ended attempt; then ShimReleased
  kArmTimer,         // then TimerFired
  kCancelTimer,      //
  kCloseRun,         // write the summary, free the slots; then RunClosed
};
std::string_view command_name(CommandKind kind);

struct Command {
  CommandKind kind{};
  RunId run;
  AttemptNumber attempt = 0;
  int count = 0;                            // kAcquireSlots
  spec::Device device = spec::Device::kCpu; // kAcquireSlots
  std::string text;                         // token, evidence id, or why ranks are killed
  bool checkpoint = false;                  // kStopRanks
  Timer timer;                              // kArmTimer, kCancelTimer
  bool operator==(const Command&) const = default;
};

// "kill_ranks run=a attempt=1 reason=..." as scenarios and the log write it.
std::string to_text(const Command& command);

// That the run holds: one for each rank of the run file, so that it can climb back.
int slots_of(const Run& run);

// Those of its slots that its next attempt may use: none in quarantine, those of nodes that are
// away last.
std::vector<std::string> usable_slots(const Run& run);
bool has_slots_for(const Run& run, int ranks);
// Of these, those on nodes that are heard.
int heard_slots(const Run& run);
bool has_heard_slots_for(const Run& run, int ranks);

// Those that wait for slots, first come, first served.
std::vector<const Run*> queued_runs(const State& state);

// Every command that the state wants carried out now, in the order of runs.
std::vector<Command> pending_commands(const State& state);

} // namespace nsa::state
