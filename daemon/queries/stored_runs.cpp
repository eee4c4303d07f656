#include "daemon/queries/stored_runs.h"

#include "common/wire/run_row.h"
#include "daemon/run_metrics/shown_run.h"

#include <functional>

namespace nsa::control {

wire::RunSummary StoredRuns::damaged(const RunId& run, const std::string& why) {
  const auto label = ledger_.label(run).value_or(std::nullopt);
  return damaged_summary(label.value_or(store::RunLabel{.run = run}), why);
}

wire::RunSummary StoredRuns::read(const RunId& run, const nlohmann::json& shown, bool is_open) {
  auto summary = summary_from(shown, run);
  if (summary) return std::move(*summary);
  if (!is_open) ledger_.note_damage(run, summary.error().what);
  return damaged(run, summary.error().what);
}

wire::RunSummary StoredRuns::summary_of(const store::StoredRun& run) {
  if (run.progress.state == wire::RunState::kDamaged || !run.damage.empty())
    return damaged(run.row.id, run.damage);
  return read(run.row.id, run.progress.shown, run.progress.open);
}

Result<std::vector<OwnedSummary>> StoredRuns::summaries(int64_t limit,
                                                        const store::ListedRow& behind) {
  NSA_TRY_ASSIGN(const auto runs, ledger_.ended_runs(limit, behind));
  std::vector<OwnedSummary> summaries;
  for (const store::ListedRun& run : runs) {
    const bool is_damaged = run.state == wire::RunState::kDamaged || !run.damage.empty();
    summaries.push_back(
        {run.place, is_damaged ? damaged(run.run, run.damage) : read(run.run, run.shown, false)});
  }
  return summaries;
}

Result<std::vector<store::ListedRow>> StoredRuns::rows(int64_t limit,
                                                       const store::ListedRow& behind) {
  NSA_TRY_ASSIGN(auto rows, ledger_.rows(limit, behind));
  for (store::ListedRow& row : rows) {
    if (is_sound(row.text)) continue;
    NSA_TRY_ASSIGN(const RunId run, ledger_.run_of(row));
    const std::string why = "ledger.db, run " + run + ", column list_row is no row of a list";
    if (!run.empty()) ledger_.note_damage(run, why);
    row.stored = std::move(row.text);
    row.text = list_row(damaged(run, why));
  }
  return rows;
}

// Rows go into the answer as stored, so one malformed row would spoil the whole list. Parsing a row
// takes a while and a stored row does not change, so each row is parsed only once.
bool StoredRuns::is_sound(const std::string& list_row) {
  const size_t hash = std::hash<std::string>{}(list_row);
  if (sound_rows_.count(hash) > 0) return true;
  const auto read = wire::read_rows("{\"items\":[" + list_row + "]}");
  if (!read || read->size() != 1) return false;
  sound_rows_.insert(hash);
  return true;
}

} // namespace nsa::control
