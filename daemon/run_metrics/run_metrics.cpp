#include "daemon/run_metrics/run_metrics.h"

#include "common/base/log.h"
#include "daemon/run_metrics/run_gates.h"

namespace nsa::control {

namespace {
constexpr Duration kEndedSampleKept = std::chrono::minutes(15);
} // namespace

RunMetrics::RunMetrics(Clock& clock, RunLoop& loop, const LiveAttempts& live,
                       ProvenanceSource& provenance, store::Telemetry* telemetry)
    : clock_(clock), loop_(loop), live_(live), provenance_(provenance), telemetry_(telemetry) {
  loop_.attach(static_cast<Projection&>(*this));
}

RunRecord* RunMetrics::find(const RunId& run) {
  const auto found = records_.find(run);
  return found == records_.end() ? nullptr : &found->second;
}

const RunRecord* RunMetrics::find(const RunId& run) const {
  const auto found = records_.find(run);
  return found == records_.end() ? nullptr : &found->second;
}

wire::RunSummary RunMetrics::summary(const state::Run& run) const {
  return summary_of(run, records_.at(run.id));
}

void RunMetrics::add(RunRecord record) {
  if (record.gates.rules().empty()) record.gates = gates::Evaluator(spec::all_gates(record.spec));
  records_[record.row.id] = std::move(record);
}

bool RunMetrics::on_step(const AttemptKey& key, const wire::RankStep& step) {
  RunRecord* record = find(key.run);
  if (record == nullptr) return false;
  const uint64_t before = record->last.step;
  note_step(*record, step);
  const state::Run& run = *loop_.find(key.run);
  if (step.rank == 0 && key.attempt == run.attempt.number) {
    const uint64_t updates = step.step > before ? step.step - before : 1;
    tell_health(run, *record, step);
    judge(run, *record, step.step,
          figures_of({run, *record, step, updates, clock_.wall(), counters_.gpus}));
  }
  if (telemetry_ != nullptr) telemetry_->add(key.run, key.attempt, step);
  if (step.rank == 0) tell_divergence(*loop_.find(key.run), *record);
  return true;
}

void RunMetrics::recall_losses(const RunId& run) {
  constexpr int64_t kNewest = 4096; // enough for the points of a trend and for a verdict
  if (telemetry_ == nullptr) return;
  RunRecord& record = records_.at(run);
  const auto losses = telemetry_->losses(run, kNewest);
  const auto heldout = telemetry_->heldout_losses(run, 1);
  if (!losses || !heldout) {
    log::warning("control", "a run's curve cannot be read",
                 {{"run", run}, {"why", (losses ? heldout : losses).error().what}});
    return;
  }
  for (const store::StepPoint& point : *losses) {
    record.trend.add(point.loss);
    record.loss.add(point.loss);
    record.last.loss = point.loss;
    record.last.has_loss = true;
  }
  for (const store::StepPoint& point : *heldout) {
    record.last.heldout_loss = point.loss;
    record.last.has_heldout_loss = true;
  }
}

void RunMetrics::set_waiting(const RunId& run, const std::string& why) {
  RunRecord& record = records_.at(run);
  record.waits_behind_others = false;
  if (record.waiting == why) return;
  record.waiting = why;
  loop_.touch(run);
}

void RunMetrics::close(const state::Run& run) {
  RunRecord& record = records_.at(run.id);
  tell_divergence(run, record);
  store::Batch& batch = loop_.batch();
  batch.progress.push_back(progress_row(run, record, nullptr));
  batch.progress.back().open = false;
  batch.attempts.push_back(attempt_row(run, record));
  ended_.insert_or_assign(run.id, Ended{metrics_of(run, record, nullptr), clock_.monotonic()});
  ++counters_.runs_finished[text_of(run.phase)];
}

void RunMetrics::removed(const RunId& run) {
  if (telemetry_ != nullptr) telemetry_->remove(run);
  ended_.erase(run);
}

metrics::Snapshot RunMetrics::snapshot(spec::MetricNames names) const {
  metrics::Snapshot snapshot;
  snapshot.daemon = counters_;
  const auto& runs = loop_.state().runs;
  for (const auto& [id, run] : runs) {
    const RunRecord* record = find(id);
    if (record == nullptr) continue;
    ++snapshot.daemon.runs[text_of(run.phase)];
    // Such a run has no figures, and a user may queue any number.
    if (run.phase == state::RunState::kQueued && run.attempt.number == 0) continue;
    const LiveAttempt* attempt = live(run);
    // Before the shim has repeated what the previous nsad had received, counters would go
    // backwards.
    if (attempt != nullptr && !attempt->caught_up()) continue;
    snapshot.runs.push_back(metrics_of(run, *record, attempt));
  }
  for (const auto& [id, ended] : ended_) {
    if (runs.count(id) != 0) continue; // the run was resumed
    ++snapshot.daemon.runs[ended.sample.state.text()];
    snapshot.runs.push_back(ended.sample);
  }
  // Everyone who may scrape would see these names.
  for (metrics::RunSample& sample : snapshot.runs) {
    if (names != spec::MetricNames::kAll) sample.user.clear();
    if (names == spec::MetricNames::kNone) sample.name.clear();
  }
  return snapshot;
}

void RunMetrics::drop_old_samples() {
  const MonotonicTime now = clock_.monotonic();
  std::erase_if(ended_,
                [&](const auto& entry) { return now - entry.second.at > kEndedSampleKept; });
}

} // namespace nsa::control
