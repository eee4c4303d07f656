#include "daemon/state/apply.h"

#include "daemon/state/reducer.h"

#include <algorithm>

namespace nsa::state {

namespace {

Run make_run(State& state, const Event& event, const Submitted& body, WallTime now) {
  Run run;
  run.id = event.run;
  run.order = state.next_order++;
  run.ranks = body.ranks;
  run.device = body.device;
  run.policy = body.policy;
  run.ladder = body.ladder;
  run.submitted_at = now;
  return run;
}

// The run continues in the attempt whose shim was found, whatever the ledger says of it.
void recover_run(State& state, const Event& event, const RunRecovered& body, WallTime now) {
  const auto [found, is_new] = state.runs.try_emplace(event.run);
  Run& run = found->second;
  if (is_new) {
    run.id = event.run;
    run.order = state.next_order++;
    run.submitted_at = now;
  }
  run.ranks = body.ranks;
  run.device = body.device;
  run.policy = body.policy;
  run.ladder = body.ladder;
  // The run is on the rungs that the attempt was started with. Older failures are forgotten.
  run.standing = {};
  run.standing.active = body.rungs;
  run.standing.taken_after = body.rung_taken_after.value();
  run.standing.since_step = body.first_step;
  run.standing.begins = false;
  run.slots = body.slots;
  run.quarantine.clear();
  run.deaths.clear();
  run.requeued = false;
  run.phase = RunState::kStarting;
  run.reason = "recovered: the ledger did not know this attempt";
  run.best_step = std::max(run.best_step, body.best_step);
  run.unreleased.erase(event.attempt);
  run.stop_requested = run.cancel_requested = false;
  run.gate.reset();
  run.timer.reset();
  if (run.started_at.nanoseconds == 0) run.started_at = now;
  run.ended_at = {};
  run.attempt = Attempt{};
  run.attempt.number = event.attempt;
  run.attempt.phase = AttemptPhase::kLive;
  run.attempt.token = body.token;
  run.attempt.first_step = body.first_step;
  run.attempt.checkpoint_folder = body.checkpoint_folder;
  run.attempt.shim_boot_id = body.boot_id;
  run.attempt.shim_pid = body.shim_pid;
  run.attempt.shim_start_time_ticks = body.shim_start_time_ticks;
  run.attempt.started_at = now;
  run.attempt.ranks.resize(static_cast<size_t>(body.ranks));
  run.attempt.slots = body.slots; // the slots of the ranks come first
  run.attempt.slots.resize(std::min(body.slots.size(), run.attempt.ranks.size()));
}

// Returns false if nothing has changed.
bool reduce(State& state, const Event& event, WallTime now, std::vector<Note>& notes) {
  const auto found = state.runs.find(event.run);
  if (const auto* body = std::get_if<Submitted>(&event.body)) {
    if (found != state.runs.end()) return false;
    state.runs.emplace(event.run, make_run(state, event, *body, now));
    return true;
  }
  if (const auto* body = std::get_if<RunRecovered>(&event.body)) {
    recover_run(state, event, *body, now);
    return true;
  }
  if (found == state.runs.end()) return false;
  Run& run = found->second;
  if (std::holds_alternative<RunClosed>(event.body)) {
    if (!has_ended(run.phase) || !run.unreleased.empty()) return false;
    state.runs.erase(found);
    return true;
  }
  const bool of_other_attempt = event.attempt != 0 && event.attempt != run.attempt.number;
  if (of_other_attempt && !std::holds_alternative<ShimReleased>(event.body)) return false;
  if (event.shim_sequence != 0) {
    uint64_t& newest = newest_sequence(run.attempt, event.shim_sequence);
    if (event.shim_sequence <= newest) return false; // a replayed message
    newest = event.shim_sequence;
  }
  return Reducer(state, run, event, now, notes).handle() || event.shim_sequence != 0;
}

} // namespace

Applied apply(State state, const Event& event, WallTime now) {
  const std::vector<Command> before = pending_commands(state);
  Applied result;
  result.ignored = !reduce(state, event, now, result.notes);
  if (!result.ignored) {
    const std::vector<Command> after = pending_commands(state);
    const auto has_timer = [](const std::vector<Command>& list, const RunId& run) {
      return std::any_of(list.begin(), list.end(), [&](const Command& c) {
        return c.kind == CommandKind::kArmTimer && c.run == run;
      });
    };
    for (const Command& c : before)
      if (c.kind == CommandKind::kArmTimer && !has_timer(after, c.run) &&
          !std::holds_alternative<TimerFired>(event.body)) {
        result.commands.push_back(c);
        result.commands.back().kind = CommandKind::kCancelTimer;
      }
    for (const Command& c : after)
      if (std::find(before.begin(), before.end(), c) == before.end()) result.commands.push_back(c);
  }
  result.state = std::move(state);
  return result;
}

} // namespace nsa::state
