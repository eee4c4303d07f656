// Additional rows for events, and what an event adds to a run's figures.
#include "common/base/log.h"
#include "common/spec/origin.h"
#include "common/spec/parse.h"
#include "common/spec/toggles.h"
#include "daemon/run_metrics/provenance.h"
#include "daemon/run_metrics/run_metrics.h"
#include "daemon/state/parts.h"

#include <algorithm>

namespace nsa::control {

namespace {

store::EventRow programs_changed(const RunRecord& record, nlohmann::json changed, WallTime now) {
  std::string names;
  for (const auto& [name, ids] : changed.items())
    names += (names.empty() ? "" : ", ") + name;
  return store::note_row(now.nanoseconds, record.row.id, record.of_attempt,
                         wire::EventKind::kProgramsChanged, wire::Severity::kWarning,
                         "rebuilt since the last attempt: " + names, std::move(changed));
}

// The device text; "bee: cpu" for a rank on node "bee".
std::string device_text(const state::Run* run, const wire::RankHello& hello) {
  const auto rank = static_cast<size_t>(hello.rank);
  if (run == nullptr || hello.rank < 0 || rank >= run->attempt.slots.size()) return hello.device;
  const std::string_view node = state::node_of_slot(run->attempt.slots[rank]);
  return node.empty() ? hello.device : std::string(node) + ": " + hello.device;
}

} // namespace

void note_origin(store::RunRow& row, const spec::RunSpec& spec) {
  const auto origin = spec::parse_origin(spec.origin.checkpoint);
  row.from_run = origin ? origin->run : RunId();
  row.from_step = origin ? origin->step : 0;
}

std::vector<store::ToggleRow> requested_toggles(const RunRecord& record, AttemptNumber attempt) {
  std::vector<store::ToggleRow> rows;
  const auto resolved = spec::resolve_toggles(spec::requested_toggles(record.spec));
  if (!resolved) return rows;
  const auto asked =
      spec::parse_run_file(record.row.run_file, record.row.file_name, record.row.overrides)
          .spec.toggles;
  for (const auto& [name, value] : *resolved) {
    // A toggle that the spec has and the run file lacks was added at submission, from nsad's
    // environment.
    using enum wire::ToggleOrigin;
    wire::ToggleOrigin origin = asked.count(name) != 0                 ? kFile
                                : record.spec.toggles.count(name) != 0 ? kHost
                                                                       : kDefault;
    for (const std::string& pair : record.row.overrides)
      if (pair.starts_with("toggles." + name + "=")) origin = kSet;
    for (const std::string& pair : record.fallback)
      if (pair.starts_with("toggles." + name + "=")) origin = kFallback;
    rows.push_back({record.row.id, attempt, name, value, "", origin});
  }
  return rows;
}

void RunMetrics::project(const state::State& state, const state::Event& event, WallTime now,
                         store::Batch& batch) {
  RunRecord* record = find(event.run);
  if (record == nullptr) return;
  if (const auto found = state.runs.find(event.run); found != state.runs.end()) {
    if (auto followed = follow_ladder(found->second, *record); !followed)
      log::error("control", followed.error().what);
    note_wait(*record, found->second, now);
  }
  if (const auto* granted = std::get_if<state::SlotsGranted>(&event.body)) {
    for (const std::string& slot : granted->slots)
      batch.leases.push_back({slot, event.run, now.nanoseconds});
  } else if (const auto* chosen = std::get_if<state::CheckpointChosen>(&event.body)) {
    for (const state::RejectedCheckpoint& r : chosen->rejected)
      batch.checkpoint_states.push_back(
          {event.run, r.step, r.folder, wire::CheckpointState::kCorrupt, r.problem});
    if (chosen->step > 0)
      batch.checkpoint_states.push_back(
          {event.run, chosen->step, chosen->folder, wire::CheckpointState::kVerified, ""});
    begin_attempt(state.runs.at(event.run), *record, *chosen);
  } else if (const auto* recovered = std::get_if<state::RunRecovered>(&event.body)) {
    for (const std::string& slot : recovered->slots)
      batch.leases.push_back({slot, event.run, now.nanoseconds});
    record->of_attempt = event.attempt;
    record->reached_step = std::max(record->reached_step, recovered->best_step);
    record->last.step = recovered->first_step;
  } else if (std::holds_alternative<state::AttemptPrepared>(event.body)) {
    for (store::ToggleRow& row : requested_toggles(*record, event.attempt))
      batch.toggles.push_back(std::move(row));
  }
  note_event(*record, event.body, now);
  note_gates(state, event, *record);
  project_rank_event(event, *record, now, batch);
}

// An attempt runs the programs and data that are on disk when it begins.
void RunMetrics::begin_attempt(const state::Run& run, RunRecord& record,
                               const state::CheckpointChosen& chosen) {
  if (record.reached_step > chosen.step && run.attempt.number > 1)
    record.counters.lost_steps += record.reached_step - chosen.step;
  record.reached_step = chosen.step;
  record.last.step = chosen.step;
  record.of_attempt = run.attempt.number;
  record.ranks.clear();
  record.exchange = {};
  record.learned = {};
  record.divergence_told = false;
  record.health.begin_attempt(record.spec.nsa.branches.size());
  gates::Evaluator gates(spec::all_gates(record.spec)); // a resume may have changed the gates
  gates.recall(record.gates.memory());
  gates.begin_attempt(chosen.step + 1);
  record.gates = std::move(gates);
  record.last.tokens_per_second = 0;
  nlohmann::json now = provenance_.begin(record);
  nlohmann::json changed = changed_programs(record.provenance, now);
  record.provenance = std::move(now);
  note_dataset(record);
  if (!changed.empty()) loop_.note(programs_changed(record, std::move(changed), clock_.wall()));
}

void RunMetrics::note_dataset(const RunRecord& record) {
  provenance_.read_data(
      record, [this, run = record.row.id, attempt = record.of_attempt](const nlohmann::json& data) {
        RunRecord* found = find(run);
        if (found == nullptr || found->of_attempt != attempt) return;
        found->provenance.update(data);
        loop_.touch(run);
      });
}

void RunMetrics::project_rank_event(const state::Event& event, RunRecord& record, WallTime now,
                                    store::Batch& batch) {
  if (const auto* hello = std::get_if<wire::RankHello>(&event.body)) {
    RankInfo& info = record.ranks[hello->rank];
    info.device = device_text(loop_.find(event.run), *hello);
    info.compute_precision = hello->compute_precision;
    note_hello(record.provenance, *hello);
    if (hello->rank == 0) record.health.know_data(hello->bigram_entropy_nats);
  } else if (const auto* toggles = std::get_if<wire::RankToggles>(&event.body)) {
    if (toggles->rank != 0) return;
    for (const wire::EffectiveToggle& t : toggles->toggles)
      if (spec::find_toggle(t.name) != nullptr)
        batch.toggles.push_back({event.run, event.attempt, t.name, t.requested, t.effective,
                                 wire::ToggleOrigin::kDefault});
    if (record.provenance.is_object()) record.provenance["kernels"] = toggles->kernels;
  } else if (const auto* e = std::get_if<wire::RankEvaluation>(&event.body)) {
    if (telemetry_ != nullptr) telemetry_->add(event.run, event.attempt, *e);
  } else if (const auto* c = std::get_if<wire::RankCheckpoint>(&event.body);
             c && c->error.empty()) {
    batch.checkpoints.push_back({event.run, c->step, event.attempt, c->tokens, c->bytes, c->folder,
                                 wire::CheckpointState::kUnverified, "", c->finite,
                                 now.nanoseconds});
  }
}

void RunMetrics::project(const state::Note& note) {
  RunRecord* record = find(note.run);
  if (record == nullptr) return;
  metrics::RunSample& c = record->counters;
  const bool on_rung = note.kind == wire::EventKind::kRungChanged && note.detail.contains("class");
  if (note.kind == wire::EventKind::kRestarting || on_rung)
    ++c.restarts[note.detail.value("class", "unknown")];
  if (note.kind == wire::EventKind::kCheckpointFailed)
    ++c.checkpoint_failures[text_of(metrics::CheckpointFailure::kWrite)];
  if (note.kind == wire::EventKind::kCheckpointRejected)
    ++c.checkpoint_failures[text_of(metrics::CheckpointFailure::kVerify)];
  if (note.kind == wire::EventKind::kRecovered)
    c.recovery_seconds
        .try_emplace(text_of(metrics::RecoveryPhase::kRestore), metrics::recovery_histogram())
        .first->second.observe(note.detail.value("recover_seconds", 0.0));
}

// Sets the reason why each queued run waits. The search for free slots gives the first run its
// reason. Positions stay in memory, because each run that comes or goes moves all others. Rows for
// thousands of runs would keep the loop busy for seconds.
void RunMetrics::note_queue(const state::State& state) {
  const std::vector<const state::Run*> queue = state::queued_runs(state);
  for (size_t i = 0; i < queue.size(); ++i) {
    RunRecord* record = find(queue[i]->id);
    if (record == nullptr) continue;
    if (i == 0) {
      if (record->waiting.empty() || record->waits_behind_others)
        set_waiting(queue[i]->id, "first in the queue: free slots are being looked for");
      continue;
    }
    std::string place = "behind " + queue[i - 1]->id + ", position " + std::to_string(i + 1) +
                        " of " + std::to_string(queue.size());
    record->waits_behind_others = true;
    if (record->waiting == place) continue;
    record->waiting = std::move(place);
    moved_.insert(queue[i]->id);
  }
}

void RunMetrics::add_rows(const state::State& state, const std::set<RunId>& changed,
                          store::Batch& batch) {
  note_queue(state);
  for (const RunId& id : changed) {
    const auto found = state.runs.find(id);
    const RunRecord* record = find(id);
    if (found == state.runs.end() || record == nullptr) continue;
    const state::Run& run = found->second;
    batch.progress.push_back(progress_row(run, *record, live(run)));
    if (run.attempt.number == 0) continue;
    batch.attempts.push_back(attempt_row(run, *record));
    for (size_t r = 0; r < run.attempt.ranks.size(); ++r) {
      const state::RankState& rank = run.attempt.ranks[r];
      if (!rank.started && !rank.exited) continue;
      wire::RankView view = rank_view(run, *record, static_cast<Rank>(r), nullptr);
      batch.ranks.push_back({id, run.attempt.number, view.rank, view.state, view.pid,
                             rank.start_time_ticks, view.device, view.compute_precision,
                             view.exit});
    }
  }
}

void RunMetrics::tell_health(const state::Run& run, RunRecord& record, const wire::RankStep& step) {
  for (HealthWatch::Finding& finding : record.health.add(step)) {
    loop_.note(store::note_row(clock_.wall().nanoseconds, run.id, run.attempt.number, finding.kind,
                               finding.severity, std::move(finding.text),
                               {{"step", step.step}, {"loss", step.loss}}));
    loop_.touch(run.id);
  }
}

// Reports once an attempt, and again if the loss has recovered in between.
void RunMetrics::tell_divergence(const state::Run& run, RunRecord& record) {
  const bool diverged = record.loss.diverged(has_ended(run.phase));
  if (!diverged || std::exchange(record.divergence_told, diverged)) {
    record.divergence_told = diverged;
    return;
  }
  loop_.note(store::note_row(clock_.wall().nanoseconds, run.id, run.attempt.number,
                             wire::EventKind::kLossDiverged, wire::Severity::kWarning,
                             record.loss.text() + " at step " + std::to_string(record.last.step),
                             {{"step", record.last.step}, {"loss", record.last.loss}}));
  loop_.touch(run.id);
}

} // namespace nsa::control
