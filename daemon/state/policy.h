// Decides why an attempt failed, and whether the run is restarted. Pure functions over the state.
#pragma once

#include "common/wire/exit_code.h"
#include "daemon/state/state.h"

#include <string>

namespace nsa::state {

struct Failure {
  wire::FailureClass failure = wire::FailureClass::kCrash;
  Rank culprit = -1;      // -1: no rank is to blame
  std::string text, next; // one clause, and what to do about it
};

// A rank that ended because another one went away: its exit code says so, or nsad killed it.
bool is_victim(const RankState& rank);
// A rank whose end is known, and which is neither a victim nor ended in order after the last step.
bool died_by_itself(const RankState& rank);
// Whether this exit code means a cause of the rank's own. A failed collective is not one, because
// the end of a peer also causes it.
bool is_own_cause(int exit_code);

// Classifies an attempt that has ended without success. The first death that is not a victim's is
// the cause. A cause that was known before (a hang verdict, a lost shim) takes precedence.
Failure classify(const Attempt& attempt);

struct Decision {
  bool restart = false;
  Duration delay{};
  std::string why; // why not, or which restart this is
};

// Windowed budgets: max_restarts of one class within the window, max_total_restarts within 24 h,
// max_without_progress attempts in a row. The delay doubles with each restart of the class within
// the window, up to its maximum. Its 25 % jitter is drawn from the policy's seed and the number of
// restarts so far. `run.without_progress` already counts the attempt that just failed.
Decision decide_restart(const Run& run, wire::FailureClass failure, WallTime now);

// restart.max_total_restarts, which also limits rungs.
bool total_budget_spent(const Run& run, WallTime now);

// Short form of how a rank ended: "exit 3", "signal 9 (SIGKILL)".
std::string exit_text(int exit_code, int signal);

} // namespace nsa::state
