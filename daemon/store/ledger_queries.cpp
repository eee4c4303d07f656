#include "daemon/store/ledger.h"

#include <algorithm>

namespace nsa::store {

namespace {

nlohmann::json parse(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_discarded() ? nlohmann::json() : json;
}

template <class T> T value_of(const nlohmann::json& json) {
  try {
    return json.is_null() ? T{} : json.get<T>();
  } catch (const nlohmann::json::exception&) {
    return {}; // written by us and checked by SQLite: an older shape reads as its defaults
  }
}

// Collects what `take` makes of each row.
template <class T, class Take> Result<std::vector<T>> all_rows(Statement& statement, Take take) {
  std::vector<T> rows;
  while (true) {
    NSA_TRY_ASSIGN(const bool row, statement.step());
    if (!row) return rows;
    rows.push_back(take(statement));
  }
}

EventRow event_of(const Statement& s) {
  EventRow e;
  e.view.sequence = s.integer(0);
  e.view.at = s.integer(1);
  e.view.run = s.text(2);
  e.view.attempt = static_cast<AttemptNumber>(s.integer(3));
  e.view.rank = static_cast<Rank>(s.integer(4));
  e.view.kind = s.text(5);
  e.view.severity = s.text(6);
  e.view.text = s.text(7);
  e.view.detail = parse(s.text(8));
  e.replay = s.integer(9) != 0;
  e.shim_sequence = static_cast<uint64_t>(s.integer(10));
  return e;
}

constexpr const char* kEventColumns =
    "SELECT sequence,at,run,attempt,rank,kind,severity,text,detail,replay,shim_sequence FROM "
    "events ";

} // namespace

Result<std::vector<EventRow>> Ledger::replayable(const RunId& run) {
  NSA_TRY_ASSIGN(Statement s, database_.prepare(std::string(kEventColumns) +
                                                "WHERE run=? AND replay=1 ORDER BY sequence"));
  s.bind(run);
  return all_rows<EventRow>(s, event_of);
}

Result<std::vector<RunId>> Ledger::open_runs() {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT id FROM runs WHERE open=1 ORDER BY submitted_at"));
  return all_rows<RunId>(s, [](const Statement& row) { return row.text(0); });
}

Result<int64_t> Ledger::run_count() {
  NSA_TRY_ASSIGN(Statement s, database_.prepare("SELECT count(*) FROM runs"));
  NSA_TRY_ASSIGN(const bool row, s.step());
  return row ? s.integer(0) : 0;
}

Result<uint64_t> Ledger::shim_sequence(const RunId& run, AttemptNumber attempt) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT shim_sequence FROM attempts WHERE run=? AND attempt=?"));
  NSA_TRY_ASSIGN(const bool row, s.bind(run, attempt).step());
  return row ? static_cast<uint64_t>(s.integer(0)) : 0;
}

Result<std::optional<StoredRun>> Ledger::run(const RunId& id) {
  NSA_TRY_ASSIGN(
      Statement s,
      database_.prepare(
          "SELECT name,user,submitted_at,run_file,file_name,folder,overrides,"
          "environment,spec,spec_digest,estimate,summary,open,memory FROM runs WHERE id=?"));
  NSA_TRY_ASSIGN(const bool row, s.bind(id).step());
  if (!row) return std::nullopt;
  StoredRun stored;
  RunRow& r = stored.row;
  r.id = id;
  r.name = s.text(0);
  r.user = s.text(1);
  r.submitted_at = s.integer(2);
  r.run_file = s.text(3);
  r.file_name = s.text(4);
  r.folder = s.text(5);
  r.overrides = value_of<std::vector<std::string>>(parse(s.text(6)));
  r.environment = value_of<std::map<std::string, std::string>>(parse(s.text(7)));
  r.spec = parse(s.text(8));
  r.spec_digest = s.text(9);
  r.estimate = parse(s.text(10));
  const nlohmann::json progress = parse(s.text(11));
  if (progress.is_object() && progress.contains("summary")) {
    stored.progress.summary = value_of<wire::RunSummary>(progress["summary"]);
    stored.progress.hangs = progress.value("hangs", nlohmann::json::array());
  }
  stored.progress.open = s.integer(12) != 0;
  stored.progress.memory = parse(s.text(13));
  return stored;
}

Result<std::vector<wire::RunSummary>> Ledger::summaries(int64_t limit) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT summary FROM runs WHERE open=0 ORDER BY submitted_at "
                                   "DESC LIMIT ?"));
  s.bind(limit);
  return all_rows<wire::RunSummary>(s, [](const Statement& row) {
    const auto json = parse(row.text(0));
    return json.is_object() && json.contains("summary")
               ? value_of<wire::RunSummary>(json["summary"])
               : wire::RunSummary{};
  });
}

Result<std::vector<std::pair<int64_t, std::string>>> Ledger::rows(int64_t limit) {
  // Of the index alone (migrations/0003).
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT submitted_at,list_row FROM runs INDEXED BY runs_listed "
                                   "WHERE open=0 ORDER BY submitted_at DESC LIMIT ?"));
  s.bind(limit);
  return all_rows<std::pair<int64_t, std::string>>(
      s, [](const Statement& row) { return std::pair{row.integer(0), row.text(1)}; });
}

Result<RunId> Ledger::find(const std::string& text) {
  const auto one = [&](const char* sql, const std::string& value,
                       const char* ambiguous) -> Result<std::optional<RunId>> {
    NSA_TRY_ASSIGN(Statement s, database_.prepare(sql));
    s.bind(value);
    NSA_TRY_ASSIGN(auto ids, all_rows<RunId>(s, [](const Statement& row) { return row.text(0); }));
    if (ids.empty()) return std::nullopt;
    if (ids.size() > 1 && ambiguous != nullptr)
      return fail(ErrorCode::kConflict, "'" + text + "' " + ambiguous, "give more of the id");
    return ids.front();
  };
  if (text == "@last") {
    NSA_TRY_ASSIGN(
        auto newest,
        one("SELECT id FROM runs WHERE ?1=?1 ORDER BY submitted_at DESC LIMIT 1", text, nullptr));
    if (newest) return *newest;
    return fail(ErrorCode::kNotFound, "there is no run yet", "submit one: nsactl submit run.toml");
  }
  NSA_TRY_ASSIGN(auto exact, one("SELECT id FROM runs WHERE id=?", text, nullptr));
  if (exact) return *exact;
  NSA_TRY_ASSIGN(
      auto named,
      one("SELECT id FROM runs WHERE name=? ORDER BY submitted_at DESC LIMIT 1", text, nullptr));
  if (named) return *named;
  const bool could_be_prefix =
      !text.empty() && text.find_first_not_of(kRunIdAlphabet) == std::string::npos;
  if (could_be_prefix) {
    NSA_TRY_ASSIGN(auto prefix, one("SELECT id FROM runs WHERE id>=?1 AND id<?1||'~' LIMIT 2", text,
                                    "is the beginning of several run ids"));
    if (prefix) return *prefix;
  }
  return fail(ErrorCode::kNotFound, "no run '" + text + "'", "see nsactl ls --all");
}

Result<std::vector<wire::AttemptView>> Ledger::attempts(const RunId& run) {
  NSA_TRY_ASSIGN(
      Statement s,
      database_.prepare("SELECT attempt,state,reason,failure_class,first_step,last_step,started_at,"
                        "ended_at,provenance FROM attempts WHERE run=? ORDER BY attempt"));
  s.bind(run);
  return all_rows<wire::AttemptView>(s, [](const Statement& row) {
    wire::AttemptView a;
    a.attempt = static_cast<AttemptNumber>(row.integer(0));
    a.state = row.text(1);
    a.reason = row.text(2);
    a.failure_class = row.text(3);
    a.first_step = static_cast<uint64_t>(row.integer(4));
    a.last_step = static_cast<uint64_t>(row.integer(5));
    a.started_at = row.integer(6);
    a.ended_at = row.integer(7);
    a.provenance = parse(row.text(8));
    return a;
  });
}

Result<std::string> Ledger::token(const RunId& run, AttemptNumber attempt) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT token FROM attempts WHERE run=? AND attempt=?"));
  NSA_TRY_ASSIGN(const bool row, s.bind(run, attempt).step());
  if (!row)
    return fail(ErrorCode::kNotFound, "run " + run + " has no attempt " + std::to_string(attempt));
  return s.text(0);
}

Result<std::vector<wire::RankView>> Ledger::ranks(const RunId& run, AttemptNumber attempt) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT rank,state,pid,device,compute_precision,exit "
                                   "FROM ranks WHERE run=? AND attempt=? ORDER BY rank"));
  s.bind(run, attempt);
  return all_rows<wire::RankView>(s, [](const Statement& row) {
    wire::RankView r;
    r.rank = static_cast<Rank>(row.integer(0));
    r.state = row.text(1);
    r.pid = row.integer(2);
    r.device = row.text(3);
    r.compute_precision = row.text(4);
    r.exit = row.text(5);
    return r;
  });
}

Result<std::vector<wire::ToggleView>> Ledger::toggles(const RunId& run) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT attempt,name,requested,effective,origin FROM "
                                   "toggles WHERE run=? ORDER BY attempt,name"));
  s.bind(run);
  return all_rows<wire::ToggleView>(s, [](const Statement& row) {
    return wire::ToggleView{static_cast<AttemptNumber>(row.integer(0)), row.text(1), row.text(2),
                            row.text(3), row.text(4)};
  });
}

Result<std::vector<wire::CheckpointView>> Ledger::checkpoints(const RunId& run) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT step,attempt,tokens,bytes,folder,state,problem,finite,"
                                   "written_at FROM checkpoints WHERE run=? ORDER BY step DESC"));
  s.bind(run);
  return all_rows<wire::CheckpointView>(s, [&run](const Statement& row) {
    wire::CheckpointView c;
    c.run = run;
    c.step = static_cast<uint64_t>(row.integer(0));
    c.attempt = static_cast<AttemptNumber>(row.integer(1));
    c.tokens = static_cast<uint64_t>(row.integer(2));
    c.bytes = static_cast<uint64_t>(row.integer(3));
    c.folder = row.text(4);
    c.state = row.text(5);
    c.problem = row.text(6);
    c.finite = row.integer(7) != 0;
    c.written_at = row.integer(8);
    return c;
  });
}

Result<std::vector<wire::EventView>> Ledger::events(const RunId& run, int64_t after, int limit) {
  const bool newest = limit < 0;
  const std::string where =
      run.empty() ? "WHERE ?1='' AND sequence>?2 " : "WHERE run=?1 AND sequence>?2 ";
  NSA_TRY_ASSIGN(Statement s, database_.prepare(kEventColumns + where +
                                                (newest ? "ORDER BY sequence DESC LIMIT ?3"
                                                        : "ORDER BY sequence LIMIT ?3")));
  s.bind(run, after, newest ? -limit : limit);
  NSA_TRY_ASSIGN(auto views, all_rows<wire::EventView>(
                                 s, [](const Statement& row) { return event_of(row).view; }));
  if (newest) std::reverse(views.begin(), views.end());
  return views;
}

Result<Ledger::EventPage> Ledger::event_page(const RunId& run, int64_t after, int limit) {
  constexpr size_t kPageBytes = 64 << 10;
  const std::string where =
      run.empty() ? "WHERE ?1='' AND sequence>?2 " : "WHERE run=?1 AND sequence>?2 ";
  NSA_TRY_ASSIGN(Statement s, database_.prepare(kEventColumns + where + "ORDER BY sequence"));
  s.bind(run, after);
  EventPage page;
  page.next = after;
  for (size_t bytes = 0; static_cast<int>(page.events.size()) < limit && bytes < kPageBytes;) {
    NSA_TRY_ASSIGN(page.more, s.step());
    if (!page.more) return page;
    bytes += s.text(7).size() + s.text(8).size();
    page.events.push_back(event_of(s).view);
    page.next = page.events.back().sequence;
  }
  NSA_TRY_ASSIGN(page.more, s.step());
  return page;
}

Result<int64_t> Ledger::events_before_last(const RunId& run, int64_t count) {
  // Of an index alone.
  NSA_TRY_ASSIGN(Statement s, database_.prepare(std::string("SELECT sequence FROM events WHERE ") +
                                                (run.empty() ? "?1=''" : "run=?1") +
                                                " ORDER BY sequence DESC LIMIT 1 OFFSET ?2"));
  s.bind(run, std::min(count, kMostEventsBack));
  NSA_TRY_ASSIGN(const bool row, s.step());
  return row ? s.integer(0) : 0;
}

} // namespace nsa::store
