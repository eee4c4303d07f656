#include "daemon/state/reducer.h"

#include "common/wire/part_sequence.h"

#include <algorithm>
#include <utility>

namespace nsa::state {

uint64_t& newest_sequence(Attempt& attempt, uint64_t sequence) {
  const size_t part = wire::part_of_sequence(sequence);
  return part == 0 ? attempt.shim_sequence : attempt.part_sequences[part];
}

bool Reducer::on(const SlotsGranted& e) {
  if (run_.phase != RunState::kQueued) return false;
  run_.slots = e.slots;
  run_.quarantine.clear(); // none of the new slots is in quarantine
  run_.away.clear();
  run_.deaths.clear();
  const bool is_restart = std::exchange(run_.requeued, false);
  if (attempt_.number > 0 && !is_restart) ++run_.resumes;
  if (run_.started_at.nanoseconds == 0) run_.started_at = now_;
  begin_attempt();
  set_phase(RunState::kStarting, "");
  return true;
}

bool Reducer::on(const SlotsReleased&) {
  if (run_.phase != RunState::kQueued || run_.slots.empty()) return false;
  run_.slots.clear();
  run_.quarantine.clear();
  return true;
}

bool Reducer::on(const GpuQuarantined& e) {
  const bool is_held = std::find(run_.slots.begin(), run_.slots.end(), e.uuid) != run_.slots.end();
  return is_held && run_.quarantine.try_emplace(e.uuid, e.why).second;
}

bool Reducer::on(const GpuReleased& e) {
  run_.deaths.erase(e.uuid);
  return run_.quarantine.erase(e.uuid) > 0;
}

bool Reducer::on(const CheckpointChosen& e) {
  if (attempt_.phase != AttemptPhase::kChoosing) return false;
  attempt_.first_step = e.step;
  attempt_.checkpoint_folder = e.folder;
  if (std::exchange(run_.standing.begins, false)) run_.standing.since_step = e.step;
  run_.best_step = e.step; // newer checkpoints did not verify, and do not count as progress
  run_.reached_step = e.step;
  attempt_.phase = AttemptPhase::kLaunching;
  for (const RejectedCheckpoint& r : e.rejected)
    note(EventKind::kCheckpointRejected, Severity::kWarning,
         "checkpoint of step " + std::to_string(r.step) + " is not used: " + r.problem,
         {{"step", r.step}, {"folder", r.folder}});
  return true;
}

bool Reducer::on(const AttemptPrepared& e) {
  if (attempt_.phase != AttemptPhase::kLaunching) return false;
  attempt_.token = e.token;
  return true;
}

bool Reducer::on(const ShimStarted& e) {
  if (attempt_.phase != AttemptPhase::kLaunching) return false;
  attempt_.shim_boot_id = e.boot_id;
  attempt_.shim_pid = e.pid;
  attempt_.shim_start_time_ticks = e.start_time_ticks;
  attempt_.phase = AttemptPhase::kLive;
  // The run was asked to leave while the shim was being started.
  if (run_.cancel_requested)
    kill("cancelled");
  else if (is_leaving())
    stop_ranks();
  return true;
}

bool Reducer::on(const AttemptFailedToStart& e) {
  if (attempt_.phase == AttemptPhase::kEnded || attempt_.number == 0) return false;
  attempt_.failure = e.permanent ? wire::FailureClass::kUserError : wire::FailureClass::kSupervisor;
  attempt_.failure_text = "the attempt could not be started: " + e.what;
  for (RankState& rank : attempt_.ranks)
    if (rank.started && !rank.exited) {
      kill("the attempt could not be started");
      return true;
    }
  if (attempt_.shim_pid != 0) run_.unreleased.insert(attempt_.number);
  conclude();
  return true;
}

bool Reducer::on(const ShimLost& e) {
  if (!with_shim()) return false;
  for (RankState& rank : attempt_.ranks)
    if (!rank.exited) {
      rank.exited = true;
      rank.exit_known = false;
    }
  if (!attempt_.hang_pending && !all_known()) {
    attempt_.failure = wire::FailureClass::kSupervisor;
    attempt_.failure_text = "the ranks' parent (nsa-shim) is gone: " + e.why;
  }
  conclude();
  return true;
}

bool Reducer::on(const NodeBack& e) {
  return run_.away.erase(e.node) > 0;
}

bool Reducer::on(const NodeLost& e) {
  if (!with_shim()) return false;
  const bool is_news = run_.away.insert(e.node).second;
  // An earlier failure stays the cause. The next attempt still avoids the lost node.
  if (attempt_.phase == AttemptPhase::kKilling || attempt_.failure) return is_news;
  attempt_.failure = wire::FailureClass::kNetwork;
  attempt_.failure_text = "node " + e.node + " is lost: " + e.why;
  take_down(attempt_.failure_text);
  return true;
}

// The other nodes' ranks are killed, too, and their shims are released as at every end.
bool Reducer::on(const PartLost& e) {
  if (!with_shim()) return false;
  bool is_news = false;
  for (Rank number = e.first_rank; number < e.first_rank + e.ranks; ++number) {
    RankState* rank = rank_of(number);
    if (rank == nullptr || rank->exited) continue;
    is_news = rank->exited = true;
    rank->exit_known = false;
  }
  if (!is_news) return false;
  const bool is_explained =
      attempt_.told || std::any_of(attempt_.ranks.begin(), attempt_.ranks.end(), died_by_itself);
  if (!attempt_.hang_pending && !attempt_.failure && !is_explained) {
    attempt_.failure = wire::FailureClass::kNetwork;
    attempt_.failure_text = "node " + e.node + " is lost: " + e.why;
  }
  if (all_exited()) {
    run_.unreleased.insert(attempt_.number);
    conclude();
  } else if (attempt_.phase != AttemptPhase::kKilling) {
    take_down("the ranks on node " + e.node + " have ended: " + e.why);
  }
  return true;
}

bool Reducer::on(const MessagesLost& e) {
  if (!with_shim()) return false;
  uint64_t& newest = newest_sequence(attempt_, e.last);
  newest = std::max(newest, e.last);
  for (const wire::RankIdentity& seen : e.ranks) {
    RankState* rank = rank_of(seen.rank);
    if (rank == nullptr || seen.pid == 0) continue;
    rank->started = rank->greeted = true;
    rank->pid = seen.pid;
    rank->start_time_ticks = seen.start_time_ticks;
  }
  const bool all = std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                               [](const RankState& r) { return r.greeted; });
  if (all && attempt_.phase == AttemptPhase::kLive)
    set_phase(RunState::kRunning, run_.phase == RunState::kStarting ? run_.reason : "");
  return true;
}

} // namespace nsa::state
