#include "daemon/run_metrics/shown_run.h"

#include "common/wire/messages.h"
#include "common/wire/run_row.h"

namespace nsa::control {

void show(const wire::RunSummary& summary, store::RunProgressRow& row) {
  row.run = summary.id;
  row.state = summary.state;
  row.ended_at = summary.ended_at.nanoseconds;
  row.shown = summary;
  row.list_row = list_row(summary);
}

std::string list_row(const wire::RunSummary& summary) {
  return wire::to_row(summary).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<wire::RunSummary> summary_from(const nlohmann::json& shown, const RunId& run) {
  return wire::body_as<wire::RunSummary>(shown, "ledger.db, run " + run + ", column summary");
}

wire::RunSummary damaged_summary(const store::RunLabel& label, const std::string& why) {
  if (label.state == wire::RunState::kDamaged)
    if (auto rows = wire::read_rows("{\"items\":[" + label.list_row + "]}");
        rows && rows->size() == 1)
      return std::move(rows->front());
  wire::RunSummary summary;
  summary.id = label.run;
  summary.name = label.name;
  summary.user = label.user;
  summary.submitted_at = label.submitted_at;
  summary.state = wire::RunState::kDamaged;
  summary.reason = why;
  return summary;
}

} // namespace nsa::control
