#include "daemon/store/ledger.h"

#include "common/base/json.h"
#include "common/wire/messages.h"
#include "daemon/store/all_rows.h"

#include <algorithm>
#include <utility>

namespace nsa::store {

namespace {

constexpr JsonLimits kLimits{.bytes = size_t{8} << 20};
// Upper bounds that leave room for additions.
constexpr int64_t kLatest = int64_t{1} << 62; // in the year 2116
constexpr int64_t kMostAttempts = 1'000'000'000;
// Key of the error text in the detail of an unreadable event.
constexpr const char* kDamaged = "damaged";

// Reads the JSON columns of one row and keeps the first error. An unreadable column gives null, or
// the defaults of its type. Older programs did not write all members.
class Columns {
public:
  Columns(const Statement& row, std::string subject) : row_(row), subject_(std::move(subject)) {}

  nlohmann::json json(int column, const char* name) {
    auto tree = parse_json(row_.text(column), subject_ + ", column " + name, kLimits);
    if (tree) return std::move(*tree);
    note(tree.error().what);
    return {};
  }
  // Returns 0 if the value is less than `least` or more than `most`.
  int64_t integer(int column, const char* name, int64_t least, int64_t most) {
    const int64_t value = row_.integer(column);
    if (value >= least && value <= most) return value;
    note(subject_ + ", column " + name + " is " + std::to_string(value));
    return 0;
  }
  template <class T> T value(const nlohmann::json& json, const char* name) {
    if (json.is_null()) return {};
    auto value = wire::body_as<T>(json, subject_ + ", column " + name);
    if (value) return std::move(*value);
    note(value.error().what);
    return {};
  }
  template <class T> T value(int column, const char* name) {
    return value<T>(json(column, name), name);
  }
  const std::string& damage() const { return damage_; }

private:
  void note(const std::string& what) {
    if (damage_.empty()) damage_ = what;
  }
  const Statement& row_;
  std::string subject_, damage_;
};

// The user-visible document of a run; its hangs are in the same column.
nlohmann::json shown_of(Columns& columns, int column, nlohmann::json* hangs = nullptr) {
  nlohmann::json both = columns.json(column, "summary");
  if (!both.is_object()) return nlohmann::json::object();
  if (hangs != nullptr) *hangs = both.value("hangs", nlohmann::json::array());
  return both.value("summary", nlohmann::json::object());
}

// A shim passes only shorter texts. One damaged row must not make a whole list too long.
constexpr size_t kLongestText = 64 << 10;

// `damage` keeps the first error of any row. The row itself holds its own error.
EventRow event_of(const Statement& s, std::string& damage) {
  EventRow e;
  e.sequence = s.integer(0);
  Columns columns(s, "ledger.db, event " + std::to_string(e.sequence));
  e.at = columns.integer(1, "at", 0, kLatest);
  e.run = s.text(2);
  e.attempt = static_cast<AttemptNumber>(columns.integer(3, "attempt", 0, kMostAttempts));
  e.rank = static_cast<Rank>(s.integer(4));
  e.kind = ChoiceOrText<wire::EventKind>(s.text(5));
  e.severity = ChoiceOrText<wire::Severity>(s.text(6));
  e.text = s.text(7);
  if (e.text.size() > kLongestText) e.text = e.text.substr(0, kLongestText) + "...";
  e.detail = columns.json(8, "detail");
  if (!columns.damage().empty()) e.detail = {{kDamaged, columns.damage()}};
  if (damage.empty()) damage = columns.damage();
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
  std::string damage;
  NSA_TRY_ASSIGN(auto rows, all_rows<EventRow>(
                                s, [&](const Statement& row) { return event_of(row, damage); }));
  if (!damage.empty()) return fail(ErrorCode::kCorrupt, damage);
  return rows;
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

Result<uint64_t> Ledger::part_sequence(const RunId& run, AttemptNumber attempt, size_t part) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT shim_sequence FROM attempt_parts WHERE run=? AND "
                                   "attempt=? AND part=?"));
  NSA_TRY_ASSIGN(const bool row, s.bind(run, attempt, static_cast<int64_t>(part)).step());
  return row ? static_cast<uint64_t>(s.integer(0)) : 0;
}

Result<std::optional<StoredRun>> Ledger::run(const RunId& id) {
  NSA_TRY_ASSIGN(
      Statement s,
      database_.prepare(
          "SELECT name,user,submitted_at,run_file,file_name,folder,overrides,"
          "spec,spec_digest,estimate,summary,open,memory,state,uid,from_run,from_step,ended_at,"
          "list_row FROM runs WHERE id=?"));
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
  Columns columns(s, "ledger.db, run " + id);
  r.overrides = columns.value<std::vector<std::string>>(6, "overrides");
  r.spec = columns.json(7, "spec");
  r.spec_digest = s.text(8);
  r.estimate = columns.json(9, "estimate");
  RunProgressRow& p = stored.progress;
  p.run = id;
  p.shown = shown_of(columns, 10, &p.hangs);
  p.open = s.integer(11) != 0;
  p.memory = columns.json(12, "memory");
  p.state = ChoiceOrText<wire::RunState>(s.text(13));
  stored.damage = columns.damage();
  if (p.state != wire::RunState::kDamaged && !p.open) note_damage(id, stored.damage);
  r.uid = s.integer(14);
  r.from_run = s.text(15);
  r.from_step = static_cast<uint64_t>(s.integer(16));
  p.ended_at = s.integer(17);
  p.list_row = s.text(18);
  return stored;
}

Result<std::vector<DescendantRow>> Ledger::descendants(const RunId& run) {
  constexpr int64_t kMost = 1000; // nobody reads more
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT id,name,from_step FROM runs WHERE from_run=? AND "
                                   "from_run<>'' ORDER BY submitted_at LIMIT ?"));
  s.bind(run, kMost);
  return all_rows<DescendantRow>(s, [](const Statement& row) {
    return DescendantRow{row.text(0), row.text(1), static_cast<uint64_t>(row.integer(2))};
  });
}

Result<std::vector<ListedRun>> Ledger::ended_runs(int64_t limit, const ListedRow& behind) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT submitted_at,list_row,uid,id,state,summary FROM runs "
                                   "WHERE open=0 AND (submitted_at,list_row)<(?,?) ORDER BY "
                                   "submitted_at DESC,list_row DESC LIMIT ?"));
  s.bind(behind.submitted_at, behind.place(), limit);
  return all_rows<ListedRun>(s, [this](const Statement& row) {
    ListedRun run{{row.integer(0), row.text(1), row.integer(2)},
                  row.text(3),
                  ChoiceOrText<wire::RunState>(row.text(4)),
                  {},
                  {}};
    if (run.state == wire::RunState::kDamaged) return run;
    Columns columns(row, "ledger.db, run " + run.run);
    run.shown = shown_of(columns, 5);
    run.damage = columns.damage();
    note_damage(run.run, run.damage);
    return run;
  });
}

Result<std::vector<ListedRow>> Ledger::rows(int64_t limit, const ListedRow& behind) {
  // Answered from the index alone (migrations/0003, 0005).
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT submitted_at,list_row,uid FROM runs INDEXED BY "
                                   "runs_listed WHERE open=0 AND (submitted_at,list_row)<(?,?) "
                                   "ORDER BY submitted_at DESC,list_row DESC LIMIT ?"));
  s.bind(behind.submitted_at, behind.place(), limit);
  return all_rows<ListedRow>(s, [](const Statement& row) {
    return ListedRow{row.integer(0), row.text(1), row.integer(2)};
  });
}

Result<RunId> Ledger::run_of(const ListedRow& row) {
  NSA_TRY_ASSIGN(Statement s, database_.prepare("SELECT id FROM runs WHERE submitted_at=? AND "
                                                "list_row=?"));
  NSA_TRY_ASSIGN(const bool found, s.bind(row.submitted_at, row.place()).step());
  return found ? s.text(0) : "";
}

Result<std::optional<RunLabel>> Ledger::label(const RunId& run) {
  NSA_TRY_ASSIGN(
      Statement s,
      database_.prepare("SELECT name,user,submitted_at,state,list_row FROM runs WHERE id=?"));
  NSA_TRY_ASSIGN(const bool found, s.bind(run).step());
  if (!found) return std::nullopt;
  return RunLabel{
      run, s.text(0), s.text(1), s.integer(2), ChoiceOrText<wire::RunState>(s.text(3)), s.text(4)};
}

void Ledger::note_damage(const RunId& run, const std::string& why) {
  if (!why.empty() && told_.insert(run).second) damaged_.push_back({run, why});
}

std::vector<DamagedRun> Ledger::take_damaged() {
  return std::exchange(damaged_, {});
}

Result<Found> Ledger::find(const std::string& text, std::optional<int64_t> uid) {
  const auto matching = [&](const char* condition, std::optional<int64_t> of) -> Result<Found> {
    NSA_TRY_ASSIGN(Statement s,
                   database_.prepare("SELECT id,uid FROM runs WHERE " + std::string(condition)));
    s.bind(text, !of.has_value(), of.value_or(0));
    NSA_TRY_ASSIGN(auto runs, all_rows<Found::Owned>(s, [](const Statement& row) {
                     return Found::Owned{row.text(0), row.integer(1)};
                   }));
    return Found{std::move(runs), false};
  };
  const auto own_first = [&](const char* condition) -> Result<Found> {
    if (uid) {
      NSA_TRY_ASSIGN(Found own, matching(condition, uid));
      if (!own.runs.empty()) return own;
    }
    return matching(condition, std::nullopt);
  };
  if (text == "@last") {
    NSA_TRY_ASSIGN(Found newest, own_first("?1=?1 AND (?2 OR uid=?3) ORDER BY submitted_at DESC "
                                           "LIMIT 1"));
    if (!newest.runs.empty()) return newest;
    return fail(ErrorCode::kNotFound, "there is no run yet", "submit one: nsactl submit run.toml");
  }
  NSA_TRY_ASSIGN(Found exact, matching("id=?1 AND ?2=?2 AND ?3=?3", std::nullopt));
  if (!exact.runs.empty()) return exact;
  NSA_TRY_ASSIGN(Found named, own_first("name=?1 AND (?2 OR uid=?3) ORDER BY submitted_at DESC "
                                        "LIMIT 1000"));
  if (!named.runs.empty()) return named;
  const bool could_be_prefix =
      !text.empty() && text.find_first_not_of(kRunIdAlphabet) == std::string::npos;
  if (could_be_prefix) {
    NSA_TRY_ASSIGN(Found prefix, matching("id>=?1 AND id<?1||'~' AND ?2=?2 AND ?3=?3 ORDER BY "
                                          "submitted_at DESC LIMIT 1000",
                                          std::nullopt));
    prefix.by_prefix = true;
    if (!prefix.runs.empty()) return prefix;
  }
  return fail(ErrorCode::kNotFound, "no run '" + text + "'", "see nsactl ls --all");
}

Result<std::vector<AttemptRow>> Ledger::attempts(const RunId& run) {
  NSA_TRY_ASSIGN(
      Statement s,
      database_.prepare("SELECT attempt,state,reason,failure_class,first_step,last_step,started_at,"
                        "ended_at,provenance FROM attempts WHERE run=? ORDER BY attempt"));
  s.bind(run);
  return all_rows<AttemptRow>(s, [&run](const Statement& row) {
    AttemptRow a;
    a.run = run;
    a.attempt = static_cast<AttemptNumber>(row.integer(0));
    a.state = row.text(1);
    a.reason = row.text(2);
    a.failure_class = ChoiceOrText<wire::FailureClass>(row.text(3));
    a.first_step = static_cast<uint64_t>(row.integer(4));
    a.last_step = static_cast<uint64_t>(row.integer(5));
    a.started_at = row.integer(6);
    a.ended_at = row.integer(7);
    Columns columns(row, "ledger.db, attempt " + std::to_string(a.attempt));
    a.provenance = columns.json(8, "provenance");
    if (!columns.damage().empty()) a.provenance = {{kDamaged, columns.damage()}};
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

Result<std::vector<RankRow>> Ledger::ranks(const RunId& run, AttemptNumber attempt) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT rank,state,pid,device,compute_precision,exit "
                                   "FROM ranks WHERE run=? AND attempt=? ORDER BY rank"));
  s.bind(run, attempt);
  return all_rows<RankRow>(s, [&](const Statement& row) {
    RankRow r;
    r.run = run;
    r.attempt = attempt;
    r.rank = static_cast<Rank>(row.integer(0));
    r.state = ChoiceOrText<wire::RankStatus>(row.text(1));
    r.pid = row.integer(2);
    r.device = row.text(3);
    r.compute_precision = row.text(4);
    r.exit = row.text(5);
    return r;
  });
}

Result<std::vector<ToggleRow>> Ledger::toggles(const RunId& run) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT attempt,name,requested,effective,origin FROM "
                                   "toggles WHERE run=? ORDER BY attempt,name"));
  s.bind(run);
  return all_rows<ToggleRow>(s, [&run](const Statement& row) {
    return ToggleRow{run,         static_cast<AttemptNumber>(row.integer(0)),
                     row.text(1), row.text(2),
                     row.text(3), ChoiceOrText<wire::ToggleOrigin>(row.text(4))};
  });
}

Result<std::vector<CheckpointRow>> Ledger::checkpoints(const RunId& run) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT step,attempt,tokens,bytes,folder,state,problem,finite,"
                                   "written_at FROM checkpoints WHERE run=? ORDER BY step DESC"));
  s.bind(run);
  return all_rows<CheckpointRow>(s, [&run](const Statement& row) {
    CheckpointRow c;
    c.run = run;
    c.step = static_cast<uint64_t>(row.integer(0));
    c.attempt = static_cast<AttemptNumber>(row.integer(1));
    c.tokens = static_cast<uint64_t>(row.integer(2));
    c.bytes = static_cast<uint64_t>(row.integer(3));
    c.folder = row.text(4);
    c.state = ChoiceOrText<wire::CheckpointState>(row.text(5));
    c.problem = row.text(6);
    c.finite = row.integer(7) != 0;
    c.written_at = row.integer(8);
    return c;
  });
}

Result<std::vector<EventRow>> Ledger::events(const RunId& run, int64_t after, int limit) {
  const bool newest = limit < 0;
  const std::string where =
      run.empty() ? "WHERE ?1='' AND sequence>?2 " : "WHERE run=?1 AND sequence>?2 ";
  NSA_TRY_ASSIGN(Statement s, database_.prepare(kEventColumns + where +
                                                (newest ? "ORDER BY sequence DESC LIMIT ?3"
                                                        : "ORDER BY sequence LIMIT ?3")));
  s.bind(run, after, newest ? -limit : limit);
  std::string damage; // the rows themselves report the damage
  NSA_TRY_ASSIGN(auto views, all_rows<EventRow>(
                                 s, [&](const Statement& row) { return event_of(row, damage); }));
  if (newest) std::reverse(views.begin(), views.end());
  return views;
}

Result<Ledger::EventPage> Ledger::event_page(const RunId& run, int64_t after, int limit) {
  constexpr size_t kPageBytes = 64 << 10;
  const std::string where =
      run.empty() ? "WHERE ?1='' AND sequence>?2 " : "WHERE run=?1 AND sequence>?2 ";
  NSA_TRY_ASSIGN(Statement s, database_.prepare(kEventColumns + where + "ORDER BY sequence"));
  s.bind(run, after);
  std::string damage; // the rows themselves report the damage
  EventPage page;
  page.next = after;
  for (size_t bytes = 0; static_cast<int>(page.events.size()) < limit && bytes < kPageBytes;) {
    NSA_TRY_ASSIGN(page.more, s.step());
    if (!page.more) return page;
    bytes += s.text(7).size() + s.text(8).size();
    page.events.push_back(event_of(s, damage));
    page.next = page.events.back().sequence;
  }
  NSA_TRY_ASSIGN(page.more, s.step());
  return page;
}

Result<int64_t> Ledger::events_before_last(const RunId& run, int64_t count) {
  // Answered from an index alone.
  NSA_TRY_ASSIGN(Statement s, database_.prepare(std::string("SELECT sequence FROM events WHERE ") +
                                                (run.empty() ? "?1=''" : "run=?1") +
                                                " ORDER BY sequence DESC LIMIT 1 OFFSET ?2"));
  s.bind(run, std::min(count, kMostEventsBack));
  NSA_TRY_ASSIGN(const bool row, s.step());
  return row ? s.integer(0) : 0;
}

Result<std::vector<AuditRow>> Ledger::audit(const RunId& run, std::optional<int64_t> uid,
                                            int limit) {
  NSA_TRY_ASSIGN(Statement s,
                 database_.prepare("SELECT sequence,at,uid,user,pid,verb,run,owner,result,why FROM "
                                   "audit WHERE (?1='' OR run=?1) AND (?2=0 OR uid=?3 OR owner=?3) "
                                   "ORDER BY sequence DESC LIMIT ?4"));
  s.bind(run, uid.has_value(), uid.value_or(0), limit);
  NSA_TRY_ASSIGN(
      auto rows, all_rows<AuditRow>(s, [](const Statement& row) {
        return AuditRow{
            row.integer(0), row.integer(1), row.integer(2),
            row.integer(4), row.text(3),    row.text(5),
            row.text(6),    row.integer(7), ChoiceOrText<wire::RequestResult>(row.text(8)),
            row.text(9)};
      }));
  std::reverse(rows.begin(), rows.end());
  return rows;
}

} // namespace nsa::store
