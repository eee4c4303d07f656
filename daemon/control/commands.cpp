// How the state's commands are carried out. Each is idempotent: after a crash the pending ones are
// carried out again.
#include "common/base/log.h"
#include "common/manifest/manifest.h"
#include "daemon/control/controller.h"
#include "daemon/control/node_readings.h"
#include "daemon/plan/plan.h"
#include "daemon/state/hang.h"

#include <algorithm>
#include <csignal>

namespace nsa::control {

using state::Command;
using state::CommandKind;

void Controller::carry_out(const Command& command) {
  const AttemptKey key{command.run, command.attempt};
  const auto supervisor = supervisors_.find(key);
  AttemptSupervisor* attempt =
      supervisor == supervisors_.end() ? nullptr : supervisor->second.get();
  switch (command.kind) {
  case CommandKind::kAcquireSlots:
    return acquire_slots(command);
  case CommandKind::kChooseCheckpoint:
    return choose_checkpoint(command);
  case CommandKind::kStartAttempt:
    return start_attempt(command);
  case CommandKind::kSupervise:
    if (attempt == nullptr) supervise(command, nullptr);
    return;
  // Without a connection these are repeated when there is one (on_connected).
  case CommandKind::kTakeEvidence:
    if (attempt != nullptr)
      attempt->take_evidence(command.text, state_.runs.at(command.run).policy.evidence_seconds);
    return;
  case CommandKind::kStopRanks:
    if (attempt != nullptr) attempt->stop_ranks(command.checkpoint);
    return;
  case CommandKind::kKillRanks:
    if (attempt != nullptr) attempt->kill_ranks(command.text);
    return;
  case CommandKind::kReleaseShim:
    return release_shim(command);
  case CommandKind::kArmTimer:
    return arm_timer(command);
  case CommandKind::kCancelTimer:
    timers_.erase(command.run);
    return;
  case CommandKind::kCloseRun:
    return close_run(command.run);
  }
}

// ---- queue
// ----------------------------------------------------------------------------------------

void Controller::set_waiting(const RunId& run, const std::string& why) {
  RunRecord& record = records_.at(run);
  if (record.waiting == why) return;
  record.waiting = why;
  touch(run);
}

// Why each queued run waits. The first one's reason is told by whoever looks for its slots.
void Controller::note_queue() {
  const std::vector<const state::Run*> queue = state::queued_runs(state_);
  for (size_t i = 0; i < queue.size(); ++i) {
    const auto record = records_.find(queue[i]->id);
    if (record == records_.end()) continue;
    const std::string& waiting = record->second.waiting;
    if (i > 0)
      set_waiting(queue[i]->id, "behind " + queue[i - 1]->id + ", position " +
                                    std::to_string(i + 1) + " of " + std::to_string(queue.size()));
    else if (waiting.empty() || waiting.starts_with("behind "))
      set_waiting(queue[i]->id, "first in the queue: free slots are being looked for");
  }
}

void Controller::acquire_slots(const Command& command) {
  if (command.text != "cuda") return grant_slots(command.run);
  // Who uses a GPU may have changed; the driver is asked on another thread, since it may block.
  if (!acquiring_.insert(command.run).second) return;
  workers_.run(
      {"", "the list of GPUs"}, [] { return gpu::list_gpus(); },
      [this, run = command.run](Result<gpu::Gpus> gpus) {
        acquiring_.erase(run);
        if (find_open(run) == nullptr) return;
        if (!gpus) return set_waiting(run, gpus.error().what);
        slots_.set_gpus(std::move(*gpus));
        grant_slots(run);
        flush();
      });
}

void Controller::grant_slots(const RunId& id) {
  const state::Run* run = find_open(id);
  if (run == nullptr || run->phase != state::RunPhase::kQueued) return;
  auto slots = slots_.acquire(id, run->device, run->ranks);
  if (!slots) return set_waiting(id, slots.error().what);
  records_.at(id).waiting.clear();
  handle({id, 0, 0, state::SlotsGranted{std::move(*slots)}});
}

// ---- attempts
// -------------------------------------------------------------------------------------

namespace {

// A rank that leaves a collective out adds gradients of one step to its peers' of another from
// there on, until it is found. Nobody else's checkpoints are touched by that.
std::vector<manifest::Distrust> distrusted_checkpoints(const state::Run& run) {
  std::vector<manifest::Distrust> all;
  for (const state::Hang& hang : run.hangs)
    if (hang.kind == state::kSkippedKind)
      all.push_back({hang.attempt, hang.step,
                     "attempt " + std::to_string(hang.attempt) + " wrote it after rank " +
                         std::to_string(hang.rank) + " had left out a collective of step " +
                         std::to_string(hang.step)});
  return all;
}

} // namespace

void Controller::choose_checkpoint(const Command& command) {
  const RunRecord& record = records_.at(command.run);
  // Gigabytes may have to be read: not on the loop's thread.
  workers_.run(
      job_of(record.row, "the checkpoints"),
      [host = options_.host, as = uid_of(record.row), folder = record.folder,
       distrusted = distrusted_checkpoints(state_.runs.at(command.run))] {
        return host->choose_checkpoint(as, folder, distrusted);
      },
      [this, command](const Result<manifest::Choice>& choice) {
        if (find_open(command.run) == nullptr) return;
        if (choice) return chosen(command, *choice);
        log::warning("control", "no checkpoint can be chosen yet",
                     {{"run", command.run}, {"why", choice.error().what}});
        timers_[command.run] =
            loop_.after(std::chrono::seconds(1), [this, command] { choose_checkpoint(command); });
      });
}

void Controller::chosen(const Command& command, const manifest::Choice& choice) {
  state::CheckpointChosen event;
  if (choice.chosen) {
    event.step = choice.chosen->step;
    event.folder = choice.chosen->folder.string();
  }
  for (const manifest::Found& f : choice.rejected)
    event.rejected.push_back({f.step, f.folder.string(), f.problem});
  submit_event({command.run, command.attempt, 0, std::move(event)});
}

void Controller::start_attempt(const Command& command) {
  const AttemptKey key{command.run, command.attempt};
  if (starting_.count(key) != 0) return;
  const state::Run& run = state_.runs.at(command.run);
  const RunRecord& record = records_.at(command.run);
  auto prepared = launcher_.prepare(run, record, options_.host->node_environment());
  if (!prepared) return fail_to_start(key, prepared.error());

  // The intent is on disk before anything runs.
  if (run.attempt.token.empty()) {
    handle({command.run, command.attempt, 0, state::AttemptPrepared{prepared->plan.token}});
    if (!write())
      return fail_to_start(key, {ErrorCode::kExhausted, "the ledger cannot be written", ""});
  }
  starting_.insert(key);
  const auto start = std::make_shared<privilege::AttemptStart>(std::move(*prepared));
  supervision_.run(
      job_of(record.row, "the start"),
      [host = options_.host, as = uid_of(record.row), start] {
        return host->start_attempt(as, std::move(*start));
      },
      [this, command](Result<shim::StartedShim> started) {
        on_started(command, std::move(started));
        flush();
      });
}

void Controller::on_started(const Command& command, Result<shim::StartedShim> started) {
  const AttemptKey key{command.run, command.attempt};
  starting_.erase(key);
  if (find_open(command.run) == nullptr) return;
  if (!started && started.error().code == ErrorCode::kExhausted && ledger_.reserve().release())
    return start_attempt(command);
  if (!started) return fail_to_start(key, started.error());
  const proc::ProcessIdentity& identity = started->identity;
  handle({command.run, command.attempt, 0,
          state::ShimStarted{identity.boot_id, identity.pid, identity.start_time_ticks}});
  slots_.set_shim(command.run, {options_.state_folder, command.run, identity.boot_id, identity.pid,
                                identity.start_time_ticks});
  Command supervision = command;
  supervision.kind = CommandKind::kSupervise;
  supervise(supervision, &*started);
}

void Controller::fail_to_start(const AttemptKey& key, const Error& error) {
  handle({key.run, key.attempt, 0,
          state::AttemptFailedToStart{error.what, error.code == ErrorCode::kNotFound}});
}

void Controller::supervise(const Command& command, shim::StartedShim* started) {
  const state::Run& run = state_.runs.at(command.run);
  AttemptSupervisor::Options options;
  options.key = {command.run, command.attempt};
  options.submitter = uid_of(records_.at(command.run).row);
  options.folder = plan::attempt_folder(run_folder(command.run), command.attempt);
  options.token = run.attempt.token;
  options.shim = {run.attempt.shim_boot_id, static_cast<pid_t>(run.attempt.shim_pid),
                  run.attempt.shim_start_time_ticks};
  options.ranks = run.ranks;
  options.first_step = run.attempt.first_step;
  options.first_step_done = run.attempt.first_step_done;
  options.hang = hang_policy_of(records_.at(command.run).spec);
  options.learned = records_.at(command.run).learned;
  options.hangs_before = static_cast<int>(
      std::count_if(run.hangs.begin(), run.hangs.end(),
                    [&](const state::Hang& hang) { return hang.attempt == command.attempt; }));
  const spec::NodeQuotaSection& quota = options_.config.quota;
  options.quotas = {quota.events_per_second, quota.steps_per_second, 0};
  options.age = std::max(Duration{}, WallTime::now() - run.attempt.started_at);
  options.adopted = started == nullptr;
  options.daemon_started = daemon_started_;
  if (started != nullptr) {
    options.pidfd = std::move(started->pidfd);
  } else {
    auto sequence = ledger_.shim_sequence(command.run, command.attempt);
    if (sequence) options.acknowledged = *sequence;
  }
  auto supervisor = std::make_unique<AttemptSupervisor>(
      loop_, *this, AttemptSupervisor::Reach{options_.host, supervision_}, std::move(options));
  AttemptSupervisor& here = *supervisor;
  supervisors_[{command.run, command.attempt}] = std::move(supervisor);
  here.start();
}

void Controller::release_shim(const Command& command) {
  const AttemptKey key{command.run, command.attempt};
  const auto found = supervisors_.find(key);
  if (found != supervisors_.end()) return found->second->release();
  // Of an attempt that ended under an nsad before us.
  const auto record = records_.find(command.run);
  if (record == records_.end()) return;
  const std::string folder = plan::attempt_folder(run_folder(command.run), command.attempt);
  supervision_.run(
      job_of(record->second.row, "started.json"),
      [host = options_.host, as = uid_of(record->second.row), folder] {
        return host->read_started(as, folder);
      },
      [this, key, folder](const Result<shim::StartedAttempt>& started) {
        release_older_shim(key, folder, started);
        flush();
      });
}

void Controller::release_older_shim(const AttemptKey& key, const std::string& folder,
                                    const Result<shim::StartedAttempt>& started) {
  const auto record = records_.find(key.run);
  if (record == records_.end()) return;
  if (const auto found = supervisors_.find(key); found != supervisors_.end())
    return found->second->release(); // asked for twice
  auto token = ledger_.token(key.run, key.attempt);
  if (!token || !started) {
    handle({key.run, key.attempt, 0, state::ShimReleased{}});
    return;
  }
  AttemptSupervisor::Options options;
  options.key = key;
  options.submitter = uid_of(record->second.row);
  options.folder = folder;
  options.token = *token;
  options.shim = {started->boot_id, static_cast<pid_t>(started->shim_pid),
                  started->shim_start_time_ticks};
  if (auto sequence = ledger_.shim_sequence(key.run, key.attempt)) options.acknowledged = *sequence;
  options.ranks = static_cast<int>(started->ranks.size());
  auto supervisor = std::make_unique<AttemptSupervisor>(
      loop_, *this, AttemptSupervisor::Reach{options_.host, supervision_}, std::move(options));
  AttemptSupervisor& here = *supervisor;
  supervisors_[key] = std::move(supervisor);
  here.release(); // before start(): a shim that is gone already is then no loss
  here.start();
}

void Controller::arm_timer(const Command& command) {
  const state::Timer timer = command.timer;
  // The wall clock may have jumped: never wait longer than was meant.
  const Duration left =
      std::clamp<Duration>(timer.due - WallTime::now(), Duration::zero(), timer.delay);
  timers_[command.run] =
      loop_.after(left, [this, run = command.run, kind = timer.kind, attempt = command.attempt] {
        submit_event({run, attempt, 0, state::TimerFired{std::string(timer_name(kind))}});
      });
}

// ---- the end
// --------------------------------------------------------------------------------------

namespace {

// What the run took, under the names of what `plan` said it would.
nlohmann::json came_of(const wire::RunSummary& summary, const RunRecord& record, double seconds) {
  const auto on_gpu = [&](uint64_t bytes) {
    return bytes == 0 ? nlohmann::json() : nlohmann::json(bytes);
  };
  return {{"peak_rank_resident_bytes", record.peaks.resident_bytes},
          {"peak_rank_allocated_bytes", on_gpu(record.peaks.allocated_bytes)},
          {"peak_rank_reserved_bytes", on_gpu(record.peaks.reserved_bytes)},
          {"disk_bytes", nlohmann::json()}, // as it is written
          {"tokens", record.counters.tokens},
          {"tokens_per_second", summary.tokens_per_second},
          {"seconds", seconds}};
}

} // namespace

void Controller::write_summary_file(const state::Run& run, const RunRecord& record) {
  const wire::RunSummary summary = summary_of(run, record);
  const bool started = run.started_at.nanoseconds != 0;
  const double seconds = started ? to_seconds(run.ended_at - run.started_at) : 0;
  const nlohmann::json json = {
      {"run", run.id},
      {"name", record.row.name},
      {"final_state", summary.state},
      {"reason", summary.reason},
      {"attempts", run.attempt.number},
      {"ranks", run.ranks},
      {"steps", summary.step},
      {"planned_steps", summary.steps},
      {"tokens", summary.tokens},
      {"loss_first",
       summary.loss_trend.empty() ? nlohmann::json() : nlohmann::json(summary.loss_trend.front())},
      {"loss_last", summary.has_loss ? nlohmann::json(summary.loss) : nlohmann::json()},
      {"heldout_loss_last",
       summary.has_heldout_loss ? nlohmann::json(summary.heldout_loss) : nlohmann::json()},
      {"seconds", seconds},
      {"tokens_per_s", summary.tokens_per_second},
      {"lost_steps", record.counters.lost_steps},
      {"steps_without_checkpoint", summary.lost_steps},
      {"alarms", summary.alarms},
      {"restarts", record.counters.restarts},
      {"hangs", hangs_json(run)},
      {"estimate", record.row.estimate},
      {"came", came_of(summary, record, seconds)},
      {"provenance", record.provenance}};
  write_summary(record.row, json, true);
}

void Controller::write_summary(const store::RunRow& row, const nlohmann::json& json, bool again) {
  supervision_.run(
      job_of(row, "the summary"),
      [host = options_.host, as = uid_of(row), folder = run_folder(row.id), json] {
        return host->write_summary(as, folder, json);
      },
      [this, row, json, again](const Status& written) {
        if (written) return;
        if (again && written.error().code == ErrorCode::kExhausted && ledger_.reserve().release())
          return write_summary(row, json, false);
        log::warning("control", "no summary was written",
                     {{"run", row.id}, {"why", written.error().what}});
      });
}

uid_t Controller::uid_of(const store::RunRow& row) {
  return static_cast<uid_t>(row.uid);
}

net::Offload::Job Controller::job_of(const store::RunRow& row, const std::string& what) {
  return {"uid " + std::to_string(uid_of(row)), what + " of run " + row.id};
}

void Controller::close_run(const RunId& id) {
  const state::Run* run = find_open(id);
  if (run == nullptr || !has_ended(run->phase)) return;
  const auto record = records_.find(id);
  // Its slots are free as soon as no rank is left; the shim may take a moment longer to leave.
  for (const std::string& slot : run->slots)
    batch_.leases.push_back({slot, "", 0});
  slots_.release(id);
  timers_.erase(id);
  if (record != records_.end()) write_summary_file(*run, record->second);
  const bool waits_for_shim = !run->unreleased.empty();
  for (const Command& c : state::pending_commands(state_))
    if (c.kind == CommandKind::kAcquireSlots && c.run != id) carry_out(c);
  // ShimReleased brings us here again, by the slow path below.
  if (waits_for_shim) {
    timers_[id] = loop_.after(std::chrono::milliseconds(50), [this, id] {
      close_run(id);
      flush();
    });
    return;
  }
  if (record != records_.end()) {
    tell_divergence(*run, record->second);
    batch_.progress.push_back({summary_of(*run, record->second), hangs_json(*run), false,
                               memory_of(record->second, nullptr)});
    batch_.attempts.push_back({id, attempt_view(*run, record->second), run->attempt.token});
    ended_samples_.insert_or_assign(
        id, EndedSample{metrics_of(*run, record->second, nullptr), MonotonicTime::now()});
    ++daemon_counters_.runs_finished[std::string(run_phase_name(run->phase))];
    wire::FollowLine line;
    line.type = "end";
    line.summary = summary_of(*run, record->second);
    handle({id, 0, 0, state::RunClosed{}});
    dirty_.erase(id); // the row above is its last
    loop_.post([this, id, line] { publish(id, line); });
    records_.erase(id);
  } else {
    handle({id, 0, 0, state::RunClosed{}});
  }
}

} // namespace nsa::control
