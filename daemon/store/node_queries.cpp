// Queries of the ledger about nodes and GPUs.
#include "daemon/store/all_rows.h"
#include "daemon/store/ledger.h"

namespace nsa::store {

Result<std::vector<ClusterNodeRow>> Ledger::cluster_nodes() {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT name,serial,next_serial,joined_at,expires_at,removed_at "
                                   "FROM cluster_nodes ORDER BY name"));
  return all_rows<ClusterNodeRow>(s, [](const Statement& row) {
    return ClusterNodeRow{row.text(0),    row.text(1),    row.text(2),
                          row.integer(3), row.integer(4), row.integer(5)};
  });
}

Result<std::vector<GpuQuarantineRow>> Ledger::gpu_quarantine() {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT uuid,why,run,since FROM gpu_quarantine ORDER BY uuid"));
  return all_rows<GpuQuarantineRow>(s, [](const Statement& row) {
    return GpuQuarantineRow{row.text(0), row.text(1), row.text(2), row.integer(3), false};
  });
}

Result<std::optional<JoinTokenRow>> Ledger::join_token(const std::string& digest) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT expires_at,used_by FROM join_tokens WHERE digest=?"));
  s.bind(digest);
  NSA_TRY_ASSIGN(const bool row, s.step());
  if (!row) return std::nullopt;
  return JoinTokenRow{digest, s.integer(0), s.text(1)};
}

Result<int64_t> Ledger::drained_at(const std::string& node) {
  NSA_TRY_ASSIGN(Statement s, database_.prepare("SELECT drained_at FROM nodes WHERE name=?"));
  s.bind(node);
  NSA_TRY_ASSIGN(const bool row, s.step());
  return row ? s.integer(0) : 0;
}

Result<std::vector<JobRow>> Ledger::jobs() {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT run,engine,number,nodes,job,state,reason,submitted_at,"
                                   "is_over FROM jobs ORDER BY run"));
  return all_rows<JobRow>(s, [](const Statement& row) {
    return JobRow{row.text(0), row.text(1), row.integer(2), row.integer(3),     row.text(4),
                  row.text(5), row.text(6), row.integer(7), row.integer(8) != 0};
  });
}

Result<std::vector<NetworkLinkRow>> Ledger::network_links() {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT node,other,latency_seconds,bytes_per_second,measured_at,"
                                   "measured_by "
                                   "FROM network_links ORDER BY node,other"));
  return all_rows<NetworkLinkRow>(s, [](const Statement& row) {
    return NetworkLinkRow{row.text(0), row.text(1),    row.real(2),
                          row.real(3), row.integer(4), ChoiceOrText<wire::MeasuredBy>(row.text(5))};
  });
}

Result<std::vector<DrainRow>> Ledger::drained_nodes() {
  NSA_TRY_ASSIGN(Statement s, database_.prepare("SELECT name,drained_at FROM cluster_nodes WHERE "
                                                "drained_at<>0 ORDER BY name"));
  return all_rows<DrainRow>(
      s, [](const Statement& row) { return DrainRow{row.text(0), row.integer(1)}; });
}

} // namespace nsa::store
