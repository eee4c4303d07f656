#include "daemon/commands/command_runner.h"

#include "common/base/log.h"
#include "common/spec/spec_json.h"
#include "daemon/commands/host_launcher.h"
#include "daemon/commands/policies.h"
#include "daemon/commands/summary.h"
#include "daemon/plan/plan.h"
#include "daemon/state/parts.h"

#include <algorithm>
#include <utility>

namespace nsa::control {

using state::Command;
using state::CommandKind;

namespace {

constexpr Duration kChooseAgain = std::chrono::seconds(1);
constexpr Duration kLookForShimAgain = std::chrono::milliseconds(50);

// Names the checkpoints that no attempt may resume from. A rank that skips a collective adds
// gradients of one step to other steps' gradients of its peers, until the hang is found. Only that
// attempt's checkpoints are wrong. If a person has resumed from an earlier step, all checkpoints
// after that step are left behind, too.
std::vector<manifest::Distrust> distrusted_checkpoints(const state::Run& run) {
  std::vector<manifest::Distrust> all;
  for (const state::Hang& hang : run.hangs)
    if (hang.kind == state::HangKind::kSkippedCollective)
      all.push_back({hang.attempt, hang.step,
                     "attempt " + std::to_string(hang.attempt) + " wrote it after rank " +
                         std::to_string(hang.rank) + " had left out a collective of step " +
                         std::to_string(hang.step)});
  for (const state::LeftBehind& left : run.left_behind)
    for (AttemptNumber attempt = 1; attempt <= left.attempt; ++attempt)
      all.push_back({attempt, left.step + 1,
                     "the run was resumed from step " + std::to_string(left.step) + " since"});
  return all;
}

} // namespace

CommandRunner::CommandRunner(Tools tools, CommandOptions options)
    : tools_(std::move(tools)), options_(std::move(options)) {
  tools_.loop.attach(static_cast<Dispatch&>(*this));
}

const state::Run* CommandRunner::find_open(const RunId& run) const {
  return tools_.metrics.find(run) == nullptr ? nullptr : tools_.loop.find(run);
}

std::string CommandRunner::attempt_folder(const AttemptKey& key) const {
  return plan::attempt_folder(options_.state_folder + "/runs/" + key.run, key.attempt);
}

void CommandRunner::carry_out_pending() {
  std::vector<Command> pending = state::pending_commands(tools_.loop.state());
  // Live attempts come first, because their ranks must not wait while a checkpoint is verified.
  std::stable_partition(pending.begin(), pending.end(),
                        [](const Command& c) { return c.kind == CommandKind::kSupervise; });
  for (const Command& command : pending)
    carry_out(command);
  tools_.loop.flush();
}

void CommandRunner::look_for_slots() {
  for (const Command& c : state::pending_commands(tools_.loop.state()))
    if (c.kind == CommandKind::kAcquireSlots) carry_out(c);
}

void CommandRunner::carry_out(const Command& command) {
  const AttemptKey key{command.run, command.attempt};
  ShimConnection* shim = tools_.connections.get(key);
  switch (command.kind) {
  case CommandKind::kReleaseSlots:
    return release_slots(command.run);
  case CommandKind::kAcquireSlots:
    return acquire_slots(command);
  case CommandKind::kChooseCheckpoint:
    return choose_checkpoint(command);
  case CommandKind::kStartAttempt:
    return start_attempt(command);
  case CommandKind::kSupervise:
    if (shim == nullptr) supervise(key, nullptr);
    return;
  // Without a connection, on_connected repeats these commands later.
  case CommandKind::kTakeEvidence:
    if (shim != nullptr)
      shim->take_evidence(command.text, tools_.loop.find(key.run)->policy.evidence_seconds);
    return;
  case CommandKind::kStopRanks:
    if (shim != nullptr) shim->stop_ranks(command.checkpoint);
    return;
  case CommandKind::kKillRanks:
    if (shim != nullptr) shim->kill_ranks(command.text);
    return;
  case CommandKind::kReleaseShim:
    return release_shim(key);
  case CommandKind::kArmTimer:
    return arm_timer(command);
  case CommandKind::kCancelTimer:
    timers_.erase(command.run);
    return;
  case CommandKind::kCloseRun:
    return close_run(command.run);
  }
}

void CommandRunner::acknowledge(const AttemptKey& key, uint64_t sequence) {
  if (ShimConnection* shim = tools_.connections.get(key)) shim->acknowledge(sequence);
}

// ---- slots --------------------------------------------------------------------------------------

void CommandRunner::release_slots(const RunId& id) {
  const state::Run* run = find_open(id);
  if (run == nullptr) return;
  tools_.slots.release(id);
  for (const std::string& slot : run->slots)
    tools_.loop.batch().leases.push_back({slot, "", 0});
  tools_.loop.handle({id, 0, 0, state::SlotsReleased{}});
}

void CommandRunner::acquire_slots(const Command& command) {
  if (command.device != spec::Device::kCuda) return grant_slots(command.run);
  // Other processes may have started or stopped using a GPU. Another thread asks the driver,
  // because the driver may block.
  if (!acquiring_.insert(command.run).second) return;
  tools_.launcher.list_gpus([this, run = command.run](Result<gpu::Gpus> gpus) {
    acquiring_.erase(run);
    if (find_open(run) == nullptr) return;
    if (!gpus) return tools_.metrics.set_waiting(run, gpus.error().what);
    tools_.slots.set_gpus(std::move(*gpus));
    grant_slots(run);
    tools_.loop.flush();
  });
}

void CommandRunner::grant_slots(const RunId& id) {
  const state::Run* run = find_open(id);
  if (run == nullptr || run->phase != state::RunState::kQueued) return;
  auto slots = slots_for(*run);
  if (!slots) return tools_.metrics.set_waiting(id, slots.error().what);
  tools_.metrics.at(id).waiting.clear();
  tools_.loop.handle({id, 0, 0, state::SlotsGranted{std::move(*slots)}});
}

Result<std::vector<std::string>> CommandRunner::slots_for(const state::Run& run) {
  const spec::ParallelSection& parallel = tools_.metrics.at(run.id).spec.parallel;
  const int count = state::slots_of(run);
  if (tools_.metrics.at(run.id).spec.engine.is_used()) return slots_of_job(run, parallel, count);
  // If the run file names no number of nodes, the run takes as few as possible.
  const bool fits_here = parallel.ranks_per_node > 0 ||
                         count <= tools_.slots.capacity(run.device) || !options_.other_nodes;
  if (parallel.nodes <= 1 && fits_here) return tools_.slots.acquire(run.id, run.device, count);
  return tools_.slots.acquire_on_nodes(
      run.id, run.device,
      {static_cast<int>(parallel.nodes), static_cast<int>(parallel.ranks_per_node), count},
      options_.other_nodes({}));
}

Result<std::vector<std::string>> CommandRunner::slots_of_job(const state::Run& run,
                                                             const spec::ParallelSection& parallel,
                                                             int count) {
  const int per_node =
      parallel.ranks_per_node > 0 ? static_cast<int>(parallel.ranks_per_node) : count;
  auto slots = tools_.slots.acquire_on_nodes(run.id, run.device,
                                             {static_cast<int>(parallel.nodes), per_node, count},
                                             options_.other_nodes(run.id), false);
  if (slots) return slots;
  return fail(ErrorCode::kExhausted, "waits for its nodes: " + options_.job_text(run.id));
}

// ---- attempts -----------------------------------------------------------------------------------

void CommandRunner::choose_checkpoint(const Command& command) {
  tools_.launcher.choose_checkpoint(
      tools_.metrics.at(command.run), distrusted_checkpoints(*tools_.loop.find(command.run)),
      [this, command](const Result<manifest::Choice>& choice) {
        if (find_open(command.run) == nullptr) return;
        if (choice) return on_chosen(command, *choice);
        log::warning("control", "no checkpoint can be chosen yet",
                     {{"run", command.run}, {"why", choice.error().what}});
        timers_[command.run] =
            tools_.clock.after(kChooseAgain, [this, command] { choose_checkpoint(command); });
      });
}

void CommandRunner::on_chosen(const Command& command, const manifest::Choice& choice) {
  state::CheckpointChosen event;
  if (choice.chosen) {
    event.step = choice.chosen->step;
    event.folder = choice.chosen->folder.string();
  }
  for (const manifest::Found& f : choice.rejected)
    event.rejected.push_back({f.step, f.folder.string(), f.problem});
  tools_.loop.submit({command.run, command.attempt, 0, std::move(event)});
}

void CommandRunner::start_attempt(const Command& command) {
  const AttemptKey key{command.run, command.attempt};
  if (starting_.count(key) != 0) return;
  const state::Run& run = *tools_.loop.find(key.run);
  const RunRecord& record = tools_.metrics.at(key.run);
  auto prepared = tools_.launcher.prepare(run, record);
  if (!prepared && prepared.error().code == ErrorCode::kUnavailable)
    return wait_for_node(command, prepared.error());
  if (!prepared) return fail_to_start(key, prepared.error());
  tools_.metrics.set_waiting(key.run, "");

  // The intent must be on disk before any process starts. Storing it issues this command again,
  // with the token.
  if (run.attempt.token.empty())
    return tools_.loop.handle(
        {key.run, key.attempt, 0,
         state::AttemptPrepared{prepared->plan.token, spec::to_json(record.spec)}});
  if (command.text.empty()) return;
  starting_.insert(key);
  tools_.launcher.start(record, std::move(*prepared),
                        [this, command](Result<shim::StartedShim> started) {
                          on_started(command, std::move(started));
                          tools_.loop.flush();
                        });
}

void CommandRunner::on_started(const Command& command, Result<shim::StartedShim> started) {
  const AttemptKey key{command.run, command.attempt};
  starting_.erase(key);
  if (find_open(key.run) == nullptr) return;
  if (!started && started.error().code == ErrorCode::kExhausted && tools_.ledger.release_reserve())
    return start_attempt(command);
  const state::Run& run = *tools_.loop.find(key.run);
  const bool on_others = state::has_other_nodes(state::parts_of(run.attempt.slots, run.ranks));
  if (!started && started.error().code == ErrorCode::kUnavailable && on_others)
    return wait_for_node(command, started.error());
  if (!started) return fail_to_start(key, started.error());
  const proc::ProcessIdentity& identity = started->identity;
  tools_.loop.handle(
      {key.run, key.attempt, 0,
       state::ShimStarted{identity.boot_id, identity.pid, identity.start_time_ticks}});
  tools_.slots.set_shim(key.run, {options_.state_folder, key.run, identity.boot_id, identity.pid,
                                  identity.start_time_ticks});
  supervise(key, &*started);
}

// Waits without a limit. Nothing has been started, so no restart is counted.
void CommandRunner::wait_for_node(const Command& command, const Error& why) {
  const state::Run& run = *tools_.loop.find(command.run);
  if (run.stop_requested || run.cancel_requested || run.gate)
    return fail_to_start({command.run, command.attempt}, why);
  tools_.metrics.set_waiting(run.id, why.what);
  timers_[command.run] = tools_.clock.after(kChooseAgain, [this, command] {
    const state::Run* waiting = find_open(command.run);
    if (waiting == nullptr || waiting->attempt.number != command.attempt ||
        waiting->attempt.phase != state::AttemptPhase::kLaunching)
      return;
    start_attempt(command);
    tools_.loop.flush();
  });
}

void CommandRunner::fail_to_start(const AttemptKey& key, const Error& error) {
  tools_.loop.handle({key.run, key.attempt, 0,
                      state::AttemptFailedToStart{error.what, error.code == ErrorCode::kNotFound}});
}

void CommandRunner::supervise(const AttemptKey& key, shim::StartedShim* started) {
  const state::Run& run = *tools_.loop.find(key.run);
  const RunRecord& record = tools_.metrics.at(key.run);
  ShimConnectionOptions options;
  options.key = key;
  options.submitter = uid_of(record.row);
  options.folder = attempt_folder(key);
  options.token = run.attempt.token;
  options.shim = {run.attempt.shim_boot_id, static_cast<pid_t>(run.attempt.shim_pid),
                  run.attempt.shim_start_time_ticks};
  options.ranks = run.ranks;
  options.slots = run.attempt.slots;
  options.first_step = run.attempt.first_step;
  options.first_step_done = run.attempt.first_step_done;
  options.hang = record.spec.hang;
  options.learned = record.learned;
  options.hangs_before = static_cast<int>(
      std::count_if(run.hangs.begin(), run.hangs.end(),
                    [&](const state::Hang& hang) { return hang.attempt == key.attempt; }));
  options.quotas = {options_.quota.events_per_second, options_.quota.steps_per_second, 0};
  options.age = std::max(Duration{}, tools_.clock.wall() - run.attempt.started_at);
  options.adopted = started == nullptr;
  options.daemon_started = options_.daemon_started;
  if (started != nullptr)
    options.pidfd = std::move(started->pidfd);
  else if (auto sequence = tools_.ledger.shim_sequence(key.run, key.attempt))
    options.acknowledged = *sequence;
  for (size_t part = 1; part < state::parts_of(options.slots, run.ranks).size(); ++part) {
    const auto sequence = tools_.ledger.part_sequence(key.run, key.attempt, part);
    options.parts_acknowledged.push_back(sequence ? *sequence : 0);
  }
  tools_.connections.add(key, tools_.connect(*this, std::move(options))).start();
}

void CommandRunner::release_shim(const AttemptKey& key) {
  if (ShimConnection* shim = tools_.connections.get(key)) return shim->release();
  // The attempt ended under an earlier nsad, so there is no connection yet.
  const RunRecord* record = tools_.metrics.find(key.run);
  if (record == nullptr) return;
  tools_.launcher.read_started(*record, key.attempt,
                               [this, key](const Result<shim::StartedAttempt>& started) {
                                 release_older_shim(key, started);
                                 tools_.loop.flush();
                               });
}

void CommandRunner::release_older_shim(const AttemptKey& key,
                                       const Result<shim::StartedAttempt>& started) {
  const RunRecord* record = tools_.metrics.find(key.run);
  if (record == nullptr) return;
  // An earlier call has connected already.
  if (ShimConnection* shim = tools_.connections.get(key)) return shim->release();
  auto token = tools_.ledger.token(key.run, key.attempt);
  if (!token || !started) {
    tools_.loop.handle({key.run, key.attempt, 0, state::ShimReleased{}});
    return;
  }
  ShimConnectionOptions options;
  options.key = key;
  options.submitter = uid_of(record->row);
  options.folder = attempt_folder(key);
  options.token = *token;
  options.shim = {started->boot_id, static_cast<pid_t>(started->shim_pid),
                  started->shim_start_time_ticks};
  if (auto sequence = tools_.ledger.shim_sequence(key.run, key.attempt))
    options.acknowledged = *sequence;
  options.ranks = static_cast<int>(started->ranks.size());
  ShimConnection& shim = tools_.connections.add(key, tools_.connect(*this, std::move(options)));
  shim.release(); // before start(), so that a shim that has exited counts as released
  shim.start();
}

void CommandRunner::arm_timer(const Command& command) {
  const state::Timer timer = command.timer;
  // The wall clock may have jumped, so the wait is never longer than the timer's delay.
  const Duration left =
      std::clamp<Duration>(timer.due - tools_.clock.wall(), Duration::zero(), timer.delay);
  timers_[command.run] = tools_.clock.after(
      left, [this, run = command.run, kind = timer.kind, attempt = command.attempt] {
        tools_.loop.submit({run, attempt, 0, state::TimerFired{kind}});
      });
}

// ---- The end ------------------------------------------------------------------------------------

// Writes the summary before the run is closed, because nobody would write it afterwards. If the
// write fails, the run is closed without a summary.
void CommandRunner::write_summary(const store::RunRow& row, const nlohmann::json& json,
                                  bool again) {
  tools_.launcher.write_summary(row, json, [this, row, json, again](const Status& written) {
    if (!written && again && written.error().code == ErrorCode::kExhausted &&
        tools_.ledger.release_reserve())
      return write_summary(row, json, false);
    if (!written)
      log::warning("control", "no summary was written",
                   {{"run", row.id}, {"why", written.error().what}});
    summaries_[row.id] = true;
    close_run(row.id);
    tools_.loop.flush();
  });
}

void CommandRunner::close_run(const RunId& id) {
  const state::Run* run = find_open(id);
  if (run == nullptr || !has_ended(run->phase)) return;
  // The run's slots are free as soon as no rank is left. The shim may exit a moment later.
  for (const std::string& slot : run->slots)
    tools_.loop.batch().leases.push_back({slot, "", 0});
  tools_.slots.release(id);
  timers_.erase(id);
  look_for_slots();
  const RunRecord& record = tools_.metrics.at(id);
  const auto [summary, is_new] = summaries_.try_emplace(id, false);
  if (is_new) write_summary(record.row, summary_json(*run, record), true);
  if (!run->unreleased.empty()) {
    timers_[id] = tools_.clock.after(kLookForShimAgain, [this, id] {
      close_run(id);
      tools_.loop.flush();
    });
    return;
  }
  if (!summary->second) return;
  summaries_.erase(summary);
  tools_.metrics.close(*run);
  const wire::RunSummary last = tools_.metrics.summary(*run);
  tools_.loop.handle({id, 0, 0, state::RunClosed{}});
  tools_.loop.untouch(id); // the batch contains its last row
  tools_.clock.post([told = options_.on_closed, last] { told(last); });
  tools_.metrics.erase(id);
}

// ---- Events from shims --------------------------------------------------------------------------

void CommandRunner::on_event(const AttemptKey& key, state::EventBody body, uint64_t sequence) {
  tools_.loop.handle({key.run, key.attempt, sequence, std::move(body)});
  tools_.metrics.tell_verdicts();
}

void CommandRunner::on_step(const AttemptKey& key, const wire::RankStep& step) {
  if (tools_.metrics.on_step(key, step) && step.rank == 0) options_.on_step(key.run, step);
  tools_.metrics.tell_verdicts();
}

void CommandRunner::on_dealt_with(const AttemptKey& key, uint64_t sequence) {
  tools_.loop.acknowledge_later(key, sequence);
}

void CommandRunner::on_connected(const AttemptKey& key) {
  tools_.loop.flush();
  // The shim may have missed commands that were issued while there was no connection.
  for (const Command& c : state::pending_commands(tools_.loop.state()))
    if (c.run == key.run && c.attempt == key.attempt && c.kind != CommandKind::kArmTimer &&
        c.kind != CommandKind::kSupervise)
      carry_out(c);
}

void CommandRunner::on_shim_ended(const AttemptKey& key) {
  tools_.loop.handle({key.run, key.attempt, 0, state::ShimReleased{}});
  // The connection is the caller of this function, so it is destroyed after the call has returned.
  tools_.clock.post([this, key] {
    tools_.connections.erase(key);
    tools_.loop.flush();
  });
}

std::vector<RankGpu> CommandRunner::gpus_of(const AttemptKey& key) {
  const state::Run* run = find_open(key.run);
  return run == nullptr ? std::vector<RankGpu>{} : options_.gpus_of(*run);
}

} // namespace nsa::control
