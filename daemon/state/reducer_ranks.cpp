#include "daemon/state/reducer.h"

#include "common/base/text.h"
#include "common/wire/toggle_request.h"
#include "daemon/state/command.h"
#include "daemon/state/xid.h"

#include <algorithm>

namespace nsa::state {

namespace {
// Time in which the cause of a victim's death may appear. Deaths of one accident reach the shim
// within milliseconds of each other.
constexpr Duration kSettle = std::chrono::milliseconds(300);
} // namespace

bool Reducer::on(const wire::RankStarted& e) {
  RankState* rank = rank_of(e.rank);
  if (rank == nullptr || rank->started) return false;
  rank->started = true;
  rank->pid = e.pid;
  rank->start_time_ticks = e.start_time_ticks;
  return true;
}

bool Reducer::on(const wire::RankHello& e) {
  RankState* rank = rank_of(e.rank);
  if (rank == nullptr || rank->greeted) return false;
  rank->greeted = true;
  const bool all = std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                               [](const RankState& r) { return r.greeted; });
  if (all && attempt_.phase == AttemptPhase::kLive) set_phase(RunState::kRunning, "");
  return true;
}

bool Reducer::on(const wire::RankExited& e) {
  RankState* rank = rank_of(e.rank);
  if (rank == nullptr || rank->exited) return false;
  rank->exited = true;
  rank->exit_code = e.exit_code;
  rank->signal = e.signal;
  rank->killed_by_shim = e.killed_by_shim;
  rank->exit_order = e.monotonic_ns;
  if (all_exited()) {
    run_.unreleased.insert(attempt_.number);
    conclude();
    return true;
  }
  const bool well = e.exit_code == 0 && rank->finished;
  if (well || attempt_.phase == AttemptPhase::kKilling) return true;
  if (attempt_.phase == AttemptPhase::kCollecting) return true; // evidence comes first
  if (!is_victim(*rank)) {
    take_down("rank " + std::to_string(e.rank) + " ended with " + exit_text(e.exit_code, e.signal));
  } else if (attempt_.phase == AttemptPhase::kLive || attempt_.phase == AttemptPhase::kStopping) {
    attempt_.phase = AttemptPhase::kSettling;
    arm(TimerKind::kSettle, kSettle);
  }
  return true;
}

bool Reducer::on(const wire::RankError& e) {
  RankState* rank = rank_of(e.rank);
  if (rank == nullptr || !rank->error.empty()) return false;
  rank->error = e.what;
  rank->error_next = e.next;
  rank->blamed_peer = e.blamed_peer;
  const bool first = std::none_of(attempt_.ranks.begin(), attempt_.ranks.end(), died_by_itself);
  if (first && !attempt_.told && is_own_cause(e.exit_code))
    attempt_.told = ToldCause{e.rank, e.exit_code};
  return true;
}

bool Reducer::on(const wire::RankFinished& e) {
  RankState* rank = rank_of(e.rank);
  if (rank == nullptr || rank->finished) return false;
  rank->finished = true;
  rank->finish_reason = e.reason;
  run_.reached_step = std::max(run_.reached_step, e.step);
  return true;
}

bool Reducer::on(const wire::RankToggles& e) {
  if (rank_of(e.rank) == nullptr) return false;
  for (const wire::EffectiveToggle& t : e.toggles) {
    if (is_as_requested(t)) continue;
    if (attempt_.failure) break;
    attempt_.failure = wire::FailureClass::kUserError;
    attempt_.failure_text = "toggle " + t.name + " was requested as " + t.requested +
                            ", in effect on rank " + std::to_string(e.rank) + " is " + t.effective;
    take_down(attempt_.failure_text);
  }
  return true;
}

bool Reducer::on(const wire::RankCheckpoint& e) {
  if (rank_of(e.rank) == nullptr) return false;
  run_.reached_step = std::max(run_.reached_step, e.step);
  if (!e.error.empty()) {
    run_.failed_checkpoints = {run_.failed_checkpoints.count + 1, e.step, e.error};
    note(EventKind::kCheckpointFailed, Severity::kError,
         "checkpoint of step " + std::to_string(e.step) + " failed: " + e.error,
         {{"step", e.step}});
    return true;
  }
  if (run_.failed_checkpoints.count > 0)
    note(EventKind::kCheckpointsRecovered, Severity::kInfo,
         "checkpoints are written again, after " + times(run_.failed_checkpoints.count) +
             " without",
         {{"step", e.step}});
  run_.failed_checkpoints = {};
  attempt_.committed_step = std::max(attempt_.committed_step, e.step);
  if (e.step > run_.best_step) {
    run_.best_step = e.step;
    run_.without_progress = 0;
  }
  climb_at(e.step);
  return true;
}

// The run tries the settings above at a checkpoint, where nothing is lost. The ranks are asked to
// leave, as by a stop.
void Reducer::climb_at(uint64_t step) {
  if (trial_passed(run_.ladder, run_.standing, step)) {
    run_.standing.trial.reset();
    run_.standing.since_step = step;
    note(EventKind::kRungKept, Severity::kInfo,
         "the rung above has trained for " + std::to_string(run_.ladder.climb_after_steps) +
             " steps and stays");
    return;
  }
  if (run_.stop_requested || run_.cancel_requested || attempt_.climbing ||
      attempt_.phase != AttemptPhase::kLive)
    return;
  const auto rung = rung_to_leave(run_.ladder, run_.standing, step);
  if (!rung) return;
  Standing above = run_.standing;
  std::erase(above.active, *rung);
  // With a GPU in quarantine the run waits here until a person releases it, and with a lost node
  // until the node is connected again.
  if (!has_heard_slots_for(run_, ranks_on(run_.ladder, above, run_.ranks))) return;
  run_.standing.climbed.insert(*rung); // the rung is left only once, however the stop ends
  attempt_.climbing = true;
  stop_ranks();
  set_phase(RunState::kRestarting,
            "stops at a checkpoint, to try without rung " + std::to_string(*rung + 1));
}

bool Reducer::on(const HostOutOfMemory&) {
  if (!with_shim()) return false;
  attempt_.host_out_of_memory = true;
  return true;
}

bool Reducer::on(const GpuFault& e) {
  if (rank_of(e.rank) == nullptr) return false;
  const XidMeaning meaning = xid_meaning(e.xid);
  if (!meaning.hardware) return true;
  if (!attempt_.hardware_error) attempt_.hardware_error = GpuError{e.rank, e.uuid, e.xid};
  quarantine(e.uuid, "Xid " + std::to_string(e.xid) + ", " + meaning.text, e.rank);
  return true;
}

bool Reducer::on(const FirstStep&) {
  if (!with_shim() || attempt_.first_step_done) return false;
  attempt_.first_step_done = true;
  if (!run_.hangs.empty()) {
    Hang& last = run_.hangs.back();
    if (last.recover_seconds < 0 && !last.observed_only && last.attempt < attempt_.number) {
      last.recover_seconds = to_seconds(now_ - last.found_at);
      note(EventKind::kRecovered, Severity::kInfo,
           "recovered from the hang of rank " + std::to_string(last.rank) + " in " +
               format_duration(last.recover_seconds),
           {{"recover_seconds", last.recover_seconds}});
    }
  }
  return true;
}

} // namespace nsa::state
