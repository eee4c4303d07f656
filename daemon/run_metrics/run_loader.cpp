#include "daemon/run_metrics/run_loader.h"

#include "common/spec/spec_json.h"
#include "daemon/run_loop/replay.h"
#include "daemon/run_metrics/shown_run.h"

#include <algorithm>

namespace nsa::control {

namespace {

// Recalls a run of an older nsad, which stored its progress only in the summary.
Status recall_shown(RunRecord& record, const nlohmann::json& shown) {
  NSA_TRY_ASSIGN(const wire::RunSummary s, summary_from(shown, record.row.id));
  record.last = static_cast<const wire::NewestFigures&>(s);
  for (const double loss : s.loss_trend)
    record.trend.add(loss);
  return {};
}

} // namespace

Result<LoadedRun> read_run(store::Ledger& ledger, const RunId& id, const std::string& folder,
                           int64_t next_order) {
  NSA_TRY_ASSIGN(auto stored, ledger.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id);
  if (!stored->damage.empty()) return fail(ErrorCode::kCorrupt, stored->damage);
  RunRecord record;
  record.row = std::move(stored->row);
  record.folder = folder;
  auto spec = spec::from_json(record.row.spec);
  if (!spec)
    return fail(ErrorCode::kCorrupt, "the stored spec of run " + id + ": " + spec.error().what);
  record.spec = std::move(*spec);
  NSA_TRY_ASSIGN(const auto events, ledger.replayable(id));
  NSA_TRY_ASSIGN(Replayed replayed, replay(id, events, next_order));
  const state::Run& run = replayed.run;
  NSA_TRY(follow_ladder(run, record));
  NSA_TRY_ASSIGN(const auto attempts, ledger.attempts(id));
  for (const store::AttemptRow& a : attempts)
    record.reached_step = std::max(record.reached_step, a.last_step);
  if (!attempts.empty() && attempts.back().attempt == run.attempt.number) {
    record.provenance = attempts.back().provenance;
    record.of_attempt = attempts.back().attempt;
    NSA_TRY_ASSIGN(const auto ranks, ledger.ranks(id, record.of_attempt));
    for (const store::RankRow& r : ranks) {
      record.ranks[r.rank].device = r.device;
      record.ranks[r.rank].compute_precision = r.compute_precision;
    }
  }
  record.gates = gates::Evaluator(spec::all_gates(record.spec));
  if (!stored->progress.memory.contains("last"))
    NSA_TRY(recall_shown(record, stored->progress.shown));
  recall(record, stored->progress.memory);
  return LoadedRun{std::move(replayed.run), std::move(record), replayed.next_order};
}

Status load_run(store::Ledger& ledger, const RunId& id, const std::string& folder, RunLoop& loop,
                RunMetrics& metrics) {
  NSA_TRY_ASSIGN(LoadedRun loaded, read_run(ledger, id, folder, loop.state().next_order));
  loop.load(std::move(loaded.run), loaded.next_order);
  metrics.add(std::move(loaded.record));
  return {};
}

int64_t owner_of(const RunMetrics& metrics, store::Ledger& ledger, const RunId& id) {
  if (const RunRecord* record = metrics.find(id)) return record->row.uid;
  const auto stored = ledger.run(id);
  return stored && *stored ? (*stored)->row.uid : -1;
}

} // namespace nsa::control
