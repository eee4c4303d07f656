#include "daemon/commands/summary.h"

namespace nsa::control {

namespace {

// Returns what the run really used, under the names of the estimate of `plan`.
nlohmann::json came_of(const wire::RunSummary& summary, const RunRecord& record, double seconds) {
  const auto on_gpu = [&](uint64_t bytes) {
    return bytes == 0 ? nlohmann::json() : nlohmann::json(bytes);
  };
  return {{"peak_rank_resident_bytes", record.peaks.resident_bytes},
          {"peak_rank_allocated_bytes", on_gpu(record.peaks.allocated_bytes)},
          {"peak_rank_reserved_bytes", on_gpu(record.peaks.reserved_bytes)},
          {"disk_bytes", nlohmann::json()}, // filled in when the file is written
          {"tokens", record.counters.tokens},
          {"tokens_per_second", summary.tokens_per_second},
          {"seconds", seconds}};
}

} // namespace

nlohmann::json summary_json(const state::Run& run, const RunRecord& record) {
  const wire::RunSummary summary = summary_of(run, record);
  const bool started = run.started_at.nanoseconds != 0;
  const double seconds = started ? to_seconds(run.ended_at - run.started_at) : 0;
  return {{"run", run.id},
          {"name", record.row.name},
          {"final_state", summary.state},
          {"reason", summary.reason},
          {"attempts", run.attempt.number},
          {"ranks", run.ranks},
          {"steps", summary.step},
          {"planned_steps", summary.steps},
          {"tokens", summary.tokens},
          {"loss_first", summary.loss_trend.empty() ? nlohmann::json()
                                                    : nlohmann::json(summary.loss_trend.front())},
          {"loss_last", summary.has_loss ? nlohmann::json(summary.loss) : nlohmann::json()},
          {"heldout_loss_last",
           summary.has_heldout_loss ? nlohmann::json(summary.heldout_loss) : nlohmann::json()},
          {"seconds", seconds},
          {"tokens_per_s", summary.tokens_per_second},
          {"lost_steps", record.counters.lost_steps},
          {"steps_without_checkpoint", summary.lost_steps},
          {"alarms", summary.alarms},
          {"restarts", record.counters.restarts},
          {"rung", summary.rung},
          {"fallback", record.fallback},
          {"hangs", hangs_json(run)},
          {"estimate", record.row.estimate},
          {"came", came_of(summary, record, seconds)},
          {"provenance", record.provenance}};
}

} // namespace nsa::control
