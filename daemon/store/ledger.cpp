#include "daemon/store/ledger.h"

#include "common/base/file.h"
#include "common/base/kill_point.h"
#include "common/base/log.h"
#include "common/wire/part_sequence.h"
#include "daemon/store/open_database.h"
#include "daemon/store/schema.h"

#include <cstring>
#include <functional>

namespace nsa::store {

namespace {

constexpr uint64_t kPreallocated = uint64_t{4} << 20;
constexpr int64_t kAuditRowsOfUid = 10'000, kAuditPrunedEvery = 256;
constexpr int64_t kTokensKept = std::chrono::nanoseconds(std::chrono::hours(24)).count();

std::string dump(const nlohmann::json& json) {
  // Texts from ranks may hold invalid UTF-8; replace it rather than throw.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Up to schema 5 the ledger held the values of passed variables. They are deleted before the backup
// of an upgrade, so that the backup does not hold them either.
Status forget_passed_values(Database& database) {
  constexpr int64_t kWithout = 6;
  NSA_TRY_ASSIGN(const int64_t version, database.integer("PRAGMA user_version"));
  if (version == 0 || version >= kWithout) return {};
  return database.execute("UPDATE runs SET environment = '{}' WHERE environment <> '{}'");
}

} // namespace

EventRow note_row(int64_t at, const RunId& run, AttemptNumber attempt,
                  ChoiceOrText<wire::EventKind> kind, wire::Severity severity, std::string text,
                  nlohmann::json detail) {
  EventRow row;
  row.at = at;
  row.run = run;
  row.attempt = attempt;
  row.kind = std::move(kind);
  row.severity = severity;
  row.text = std::move(text);
  row.detail = std::move(detail);
  return row;
}

Result<Ledger> Ledger::open(const LedgerOptions& options, WallTime now) {
  const auto path = options.folder / "ledger.db";
  NSA_TRY_ASSIGN(Checked checked, open_checked(path, "FULL"));
  NSA_TRY(forget_passed_values(checked.database));
  NSA_TRY_ASSIGN(SchemaChange change, migrate(checked.database, path.string(), now));
  SpaceReserve reserve(options.folder / "reserve", options.reserve_bytes);
  // A full disk must not keep nsad from its ranks.
  if (auto done = preallocate(checked.database, std::min(kPreallocated, options.reserve_bytes));
      !done) {
    if (checked.database.in_transaction()) (void)checked.database.execute("ROLLBACK");
    log::warning("store", "no space could be set aside in the ledger",
                 {{"why", done.error().what}});
  }
  if (auto held = reserve.hold(); !held)
    log::warning("store", "no space is set aside", {{"why", held.error().what}});
  return Ledger(
      std::move(checked.database), std::move(reserve), path,
      Opened{change.from, change.to, change.backup, checked.moved_aside, checked.restored});
}

Result<Statement*> Ledger::cached(const char* sql) {
  for (auto& [text, statement] : statements_)
    if (std::strcmp(text, sql) == 0) return statement.get();
  NSA_TRY_ASSIGN(Statement fresh, database_.prepare(sql));
  statements_.emplace_back(sql, std::make_unique<Statement>(std::move(fresh)));
  return statements_.back().second.get();
}

// Prepares (once), binds and runs.
#define NSA_LEDGER_RUN(sql, ...)                                                                   \
  do {                                                                                             \
    NSA_TRY_ASSIGN(Statement* nsa_statement, cached(sql));                                         \
    NSA_TRY(nsa_statement->bind(__VA_ARGS__).run());                                               \
  } while (false)

namespace {

// Writes the rows of a batch, by subject. `cached` prepares each statement once.
using Prepare = std::function<Result<Statement*>(const char* sql)>;

Status write_runs(const Batch& batch, const Prepare& cached) {
  for (const RunId& run : batch.made_anew) {
    NSA_LEDGER_RUN("UPDATE events SET replay=0 WHERE run=?", run);
    NSA_LEDGER_RUN("UPDATE attempts SET shim_sequence=0 WHERE run=?", run);
    NSA_LEDGER_RUN("DELETE FROM attempt_parts WHERE run=?", run);
    NSA_LEDGER_RUN("DELETE FROM jobs WHERE run=?", run);
  }
  for (const RunRow& r : batch.runs)
    NSA_LEDGER_RUN(
        "INSERT INTO runs "
        "(id,name,user,state,open,submitted_at,run_file,file_name,folder,overrides,"
        "spec,spec_digest,estimate,summary,uid,from_run,from_step) VALUES "
        "(?1,?2,?3,?13,1,?4,?5,?6,?7,"
        "?8,?9,?10,?11,'{}',?12,?14,?15) ON CONFLICT (id) DO UPDATE SET name=?2,overrides=?8,"
        "spec=?9,spec_digest=?10,estimate=?11,open=1",
        r.id, r.name, r.user, r.submitted_at, r.run_file, r.file_name, r.folder, dump(r.overrides),
        dump(r.spec), r.spec_digest, dump(r.estimate), r.uid, wire::RunState::kQueued, r.from_run,
        static_cast<int64_t>(r.from_step));
  for (const RunProgressRow& p : batch.progress)
    NSA_LEDGER_RUN("UPDATE runs SET state=?2,open=?3,ended_at=?4,summary=?5,memory=?6,list_row=?7 "
                   "WHERE id=?1",
                   p.run, p.state, p.open, p.ended_at,
                   dump({{"summary", p.shown}, {"hangs", p.hangs}}), dump(p.memory), p.list_row);
  return {};
}

Status write_attempts(const Batch& batch, const Prepare& cached) {
  for (const AttemptRow& a : batch.attempts)
    NSA_LEDGER_RUN(
        "INSERT INTO attempts (run,attempt,state,token,first_step,last_step,failure_class,reason,"
        "started_at,ended_at,provenance) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11) ON CONFLICT "
        "(run,attempt) DO UPDATE SET state=?3,token=?4,first_step=?5,last_step=?6,"
        "failure_class=?7,reason=?8,started_at=?9,ended_at=?10,provenance=?11",
        a.run, a.attempt, a.state, a.token, a.first_step, a.last_step, a.failure_class, a.reason,
        a.started_at, a.ended_at,
        dump(a.provenance.is_null() ? nlohmann::json::object() : a.provenance));
  for (const auto& [run, attempt, sequence] : batch.shim_sequences) {
    if (const size_t part = wire::part_of_sequence(sequence); part > 0)
      NSA_LEDGER_RUN("INSERT INTO attempt_parts (run,attempt,part,shim_sequence) VALUES "
                     "(?1,?2,?3,?4) ON CONFLICT (run,attempt,part) DO UPDATE SET "
                     "shim_sequence=max(shim_sequence,?4)",
                     run, attempt, static_cast<int64_t>(part), sequence);
    else
      NSA_LEDGER_RUN(
          "UPDATE attempts SET shim_sequence=max(shim_sequence,?3) WHERE run=?1 AND attempt=?2",
          run, attempt, sequence);
  }
  for (const RankRow& r : batch.ranks)
    NSA_LEDGER_RUN(
        "INSERT INTO ranks (run,attempt,rank,state,pid,start_time_ticks,device,compute_precision,"
        "exit) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9) ON CONFLICT (run,attempt,rank) DO UPDATE SET "
        "state=?4,pid=?5,start_time_ticks=?6,device=?7,compute_precision=?8,exit=?9",
        r.run, r.attempt, r.rank, r.state, r.pid, r.start_time_ticks, r.device, r.compute_precision,
        r.exit);
  for (const ToggleRow& t : batch.toggles)
    NSA_LEDGER_RUN("INSERT INTO toggles (run,attempt,name,requested,effective,origin) VALUES "
                   "(?1,?2,?3,?4,?5,?6) ON CONFLICT (run,attempt,name) DO UPDATE SET effective=?5",
                   t.run, t.attempt, t.name, t.requested, t.effective, t.origin);
  return {};
}

Status write_checkpoints(const Batch& batch, const Prepare& cached) {
  for (const CheckpointRow& c : batch.checkpoints)
    NSA_LEDGER_RUN(
        "INSERT INTO checkpoints (run,step,attempt,tokens,bytes,folder,state,problem,finite,"
        "written_at) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10) ON CONFLICT (run,step) DO UPDATE SET "
        "attempt=?3,tokens=?4,bytes=?5,folder=?6,state=?7,problem=?8,finite=?9,written_at=?10",
        c.run, c.step, c.attempt, c.tokens, c.bytes, c.folder, c.state, c.problem, c.finite,
        c.written_at);
  for (const CheckpointStateRow& c : batch.checkpoint_states)
    NSA_LEDGER_RUN(
        "INSERT INTO checkpoints (run,step,attempt,tokens,bytes,folder,state,problem,finite,"
        "written_at) VALUES (?1,?2,0,0,0,?3,?4,?5,1,0) ON CONFLICT (run,step) DO UPDATE SET "
        "state=?4,problem=?5",
        c.run, c.step, c.folder, c.state, c.problem);
  return {};
}

Status write_events(Batch& batch, Database& database, const Prepare& cached) {
  for (EventRow& e : batch.events) {
    NSA_LEDGER_RUN("INSERT INTO events (at,run,attempt,rank,kind,severity,text,detail,replay,"
                   "shim_sequence) VALUES (?,?,?,?,?,?,?,?,?,?)",
                   e.at, e.run, e.attempt, e.rank, e.kind, e.severity, e.text, dump(e.detail),
                   e.replay, e.shim_sequence);
    e.sequence = database.last_row_id();
  }
  for (AuditRow& a : batch.audit) {
    NSA_LEDGER_RUN("INSERT INTO audit (at,uid,user,pid,verb,run,owner,result,why) VALUES "
                   "(?,?,?,?,?,?,?,?,?)",
                   a.at, a.uid, a.user, a.pid, a.verb, a.run, a.owner, a.result, a.why);
    a.sequence = database.last_row_id();
    if (a.sequence % kAuditPrunedEvery == 0)
      NSA_LEDGER_RUN("DELETE FROM audit WHERE sequence IN (SELECT sequence FROM (SELECT sequence,"
                     "row_number() OVER (PARTITION BY uid ORDER BY sequence DESC) AS place FROM "
                     "audit) WHERE place>?)",
                     kAuditRowsOfUid);
  }
  return {};
}

Status write_cluster(const Batch& batch, const Prepare& cached) {
  for (const ClusterNodeRow& n : batch.cluster_nodes)
    NSA_LEDGER_RUN("INSERT INTO cluster_nodes (name,serial,next_serial,joined_at,expires_at,"
                   "removed_at) VALUES (?1,?2,?3,?4,?5,?6) ON CONFLICT (name) DO UPDATE SET "
                   "serial=?2,next_serial=?3,joined_at=?4,expires_at=?5,removed_at=?6",
                   n.name, n.serial, n.next_serial, n.joined_at, n.expires_at, n.removed_at);
  for (const JoinTokenRow& t : batch.join_tokens) {
    NSA_LEDGER_RUN("INSERT OR REPLACE INTO join_tokens (digest,expires_at,used_by) VALUES (?,?,?)",
                   t.digest, t.expires_at, t.used_by);
    // An expired token is kept for a day, so that its use gets an error with the reason.
    NSA_LEDGER_RUN("DELETE FROM join_tokens WHERE expires_at<?", t.expires_at - kTokensKept);
  }
  for (const DrainRow& d : batch.drains) {
    NSA_LEDGER_RUN("UPDATE nodes SET drained_at=?2 WHERE name=?1", d.node, d.drained_at);
    NSA_LEDGER_RUN("UPDATE cluster_nodes SET drained_at=?2 WHERE name=?1", d.node, d.drained_at);
  }
  return {};
}

Status write_network_links(const Batch& batch, const Prepare& cached) {
  for (const NetworkLinkRow& l : batch.network_links)
    NSA_LEDGER_RUN("INSERT OR REPLACE INTO network_links (node,other,latency_seconds,"
                   "bytes_per_second,measured_at,measured_by) VALUES (?,?,?,?,?,?)",
                   l.node, l.other, l.latency_seconds, l.bytes_per_second, l.measured_at, l.by);
  return {};
}

Status write_jobs(const Batch& batch, const Prepare& cached) {
  for (const JobRow& j : batch.jobs)
    NSA_LEDGER_RUN("INSERT OR REPLACE INTO jobs (run,engine,number,nodes,job,state,reason,"
                   "submitted_at,is_over) VALUES (?,?,?,?,?,?,?,?,?)",
                   j.run, j.engine, j.number, j.nodes, j.job, j.state, j.reason, j.submitted_at,
                   j.is_over);
  return {};
}

Status write_gpu_quarantine(const Batch& batch, const Prepare& cached) {
  for (const GpuQuarantineRow& q : batch.gpu_quarantine)
    if (q.is_over)
      NSA_LEDGER_RUN("DELETE FROM gpu_quarantine WHERE uuid=?", q.uuid);
    else
      NSA_LEDGER_RUN("INSERT OR REPLACE INTO gpu_quarantine (uuid,why,run,since) VALUES (?,?,?,?)",
                     q.uuid, q.why, q.run, q.since);
  return {};
}

} // namespace

Status Ledger::write(Batch& batch) {
  const Prepare prepare = [this](const char* sql) { return cached(sql); };
  NSA_TRY(database_.execute("BEGIN IMMEDIATE"));
  NSA_TRY(write_runs(batch, prepare));
  NSA_TRY(write_attempts(batch, prepare));
  NSA_TRY(write_checkpoints(batch, prepare));
  for (const Lease& l : batch.leases) {
    if (l.run.empty())
      NSA_LEDGER_RUN("DELETE FROM gpu_leases WHERE slot=?", l.slot);
    else
      NSA_LEDGER_RUN("INSERT OR REPLACE INTO gpu_leases VALUES (?,?,?)", l.slot, l.run, l.since);
  }
  for (const DamagedRun& d : batch.damaged_runs)
    NSA_TRY(set_aside(d));
  NSA_TRY(write_events(batch, database_, prepare));
  NSA_TRY(write_cluster(batch, prepare));
  NSA_TRY(write_network_links(batch, prepare));
  NSA_TRY(write_gpu_quarantine(batch, prepare));
  NSA_TRY(write_jobs(batch, prepare));
  for (const RunId& run : batch.removed) {
    NSA_LEDGER_RUN("DELETE FROM events WHERE run=?", run);
    NSA_LEDGER_RUN("DELETE FROM attempt_parts WHERE run=?", run);
    NSA_LEDGER_RUN("DELETE FROM runs WHERE id=?", run);
    std::erase_if(damaged_, [&](const DamagedRun& damaged) { return damaged.run == run; });
  }
  return database_.execute("COMMIT");
}

Status Ledger::set_aside(const DamagedRun& damaged) {
  NSA_LEDGER_RUN("UPDATE runs SET state=?2,open=0,list_row=?3 WHERE id=?1", damaged.run,
                 wire::RunState::kDamaged, damaged.list_row);
  NSA_LEDGER_RUN("DELETE FROM gpu_leases WHERE run=?", damaged.run);
  return {};
}

Status Ledger::commit(Batch& batch) {
  if (batch.empty()) return {};
  pass_kill_point(KillPoint::kLedgerCommit);
  auto written = write(batch);
  pass_kill_point(KillPoint::kLedgerCommitted);
  if (written) return {};
  if (database_.in_transaction()) (void)database_.execute("ROLLBACK");
  if (written.error().code != ErrorCode::kExhausted || !reserve_.release()) return written;
  written = write(batch);
  if (!written && database_.in_transaction()) (void)database_.execute("ROLLBACK");
  return written;
}

Status Ledger::note_node(const std::string& name, const std::string& boot_id,
                         const std::string& build, WallTime now) {
  NSA_LEDGER_RUN("INSERT INTO nodes (name,boot_id,build,first_seen,last_seen) VALUES "
                 "(?1,?2,?3,?4,?4) ON CONFLICT (name) DO UPDATE SET "
                 "boot_id=?2,build=?3,last_seen=?4",
                 name, boot_id, build, now.nanoseconds);
  return {};
}

Status Ledger::back_up() {
  return store::back_up(database_, path_);
}

uint64_t Ledger::wal_bytes() const {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path_.string() + "-wal", error);
  return error ? 0 : bytes;
}

} // namespace nsa::store
