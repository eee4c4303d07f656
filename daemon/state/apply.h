// The reducer: how an event changes the state, and which commands the new state needs.
//
// Pure: times and random seeds are arguments or parts of events, so replaying the ledger's events
// gives the same state every time. The commands are exactly those that the new state needs and the
// old one did not (command.h).
#pragma once

#include "daemon/state/command.h"
#include "daemon/state/event.h"
#include "daemon/state/state.h"

#include <string>
#include <vector>

namespace nsa::state {

// A consequence that gets a line of its own in the ledger: an attempt's end, a restart, a run's
// end. Notes are not replayed.
struct Note {
  RunId run;
  AttemptNumber attempt = 0;
  Rank rank = -1;
  ChoiceOrText<EventKind> kind;
  Severity severity = Severity::kInfo;
  std::string text;
  nlohmann::json detail;
};

struct Applied {
  State state;
  std::vector<Command> commands;
  std::vector<Note> notes;
  // The event is stale, repeated, or impossible in this state; nothing has changed.
  bool ignored = false;
};

Applied apply(State state, const Event& event, WallTime now);

// "a debugger (pid 77, gdb) is attached to rank 1; observed only"
std::string debugger_text(const DebuggerAttached& e);
// "rank 1 deadlocked in forward at step 812", or a sentence that no data arrives between two nodes.
std::string hang_text(const HangFinding& hang);

// An event for people: its severity and one sentence.
struct Description {
  Severity severity;
  std::string text;
};
Description describe(const Event& event);

} // namespace nsa::state
