#include "daemon/queries/row_views.h"

namespace nsa::control {

wire::EventView view_of(const store::EventRow& row) {
  return {row.sequence, row.at,       row.run,  row.attempt, row.rank,
          row.kind,     row.severity, row.text, row.detail};
}

wire::AttemptView view_of(const store::AttemptRow& row) {
  return {row.attempt,   row.state,      row.reason,   row.failure_class, row.first_step,
          row.last_step, row.started_at, row.ended_at, row.provenance};
}

wire::RankView view_of(const store::RankRow& row) {
  wire::RankView view;
  view.rank = row.rank;
  view.pid = row.pid;
  view.state = row.state;
  view.device = row.device;
  view.compute_precision = row.compute_precision;
  view.exit = row.exit;
  return view;
}

wire::ToggleView view_of(const store::ToggleRow& row) {
  return {row.attempt, row.name, row.requested, row.effective, row.origin};
}

wire::CheckpointView view_of(const store::CheckpointRow& row) {
  return {row.run,    row.step,  row.tokens,  row.bytes,  row.attempt,
          row.folder, row.state, row.problem, row.finite, row.written_at};
}

wire::AuditView view_of(const store::AuditRow& row) {
  return {row.sequence, row.at,  row.uid,   row.pid,    row.user,
          row.verb,     row.run, row.owner, row.result, row.why};
}

wire::DescendantView view_of(const store::DescendantRow& row) {
  return {row.id, row.name, row.from_step};
}

} // namespace nsa::control
