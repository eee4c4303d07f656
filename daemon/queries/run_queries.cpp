#include "daemon/queries/run_queries.h"

#include "common/spec/spec_json.h"
#include "common/wire/run_row.h"
#include "daemon/plan/plan.h"
#include "daemon/queries/row_views.h"
#include "daemon/queries/run_files.h"
#include "daemon/run_metrics/run_loader.h"

#include <algorithm>

namespace nsa::control {

namespace {
constexpr int64_t kRecentRuns = 10; // ended runs that a plain list shows
// Size of a page of a long list; the loop makes one page a turn.
constexpr int64_t kRowsAPage = 500, kSummariesAPage = 50;
constexpr int kEventsInDetail = 20;
constexpr size_t kMostCandidates = 20;

std::vector<std::string> devices_of(const std::vector<wire::RankView>& ranks) {
  std::vector<std::string> devices;
  for (const wire::RankView& rank : ranks)
    devices.push_back(rank.device);
  return devices;
}
} // namespace

const state::Run* RunQueries::find_open(const RunId& run) const {
  return tools_.metrics.find(run) == nullptr ? nullptr : tools_.loop.find(run);
}

std::string RunQueries::run_folder(const RunId& run) const {
  return options_.state_folder + "/runs/" + run;
}

// ---- runs --------------------------------------------------------------------------------------

Result<api::RunPage> RunQueries::list(const api::RunQuery& query, const api::Caller& caller) {
  const auto text_of = [&](const wire::RunSummary& run, int64_t owner) {
    const wire::RunSummary told = owns(caller, owner) ? run : api::says_little(run);
    return (query.rows ? wire::to_row(told) : nlohmann::json(told))
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  struct Item {
    int64_t at = 0;              // time of submission
    std::string text;            // text of an ended run
    std::string place;           // place of an ended run among those submitted at that time
    const RunId* open = nullptr; // an open run; its text is made only if it is on the page
  };
  std::vector<Item> items;
  store::ListedRow place{query.submitted_before, query.row_before, -1, {}};
  const int64_t a_page = query.rows ? kRowsAPage : kSummariesAPage;
  const int64_t wanted =
      query.all ? a_page : std::max<int64_t>(kRecentRuns - query.ended_before, 0);
  if (query.rows) {
    NSA_TRY_ASSIGN(auto ended, stored_.rows(wanted, place));
    for (store::ListedRow& row : ended) {
      const auto run = owns(caller, row.uid) ? std::vector<wire::RunSummary>{}
                                             : wire::read_rows("{\"items\":[" + row.text + "]}")
                                                   .value_or(std::vector<wire::RunSummary>(1));
      items.push_back(
          {row.submitted_at, run.empty() ? row.text : text_of(run[0], row.uid), row.place()});
    }
  } else {
    NSA_TRY_ASSIGN(auto ended, stored_.summaries(wanted, place));
    for (OwnedSummary& run : ended)
      items.push_back(
          {run.place.submitted_at, text_of(run.summary, run.place.uid), run.place.place()});
  }
  const bool more_ended = query.all && static_cast<int64_t>(items.size()) == wanted;
  // Open runs that were submitted in the page's time span.
  const int64_t oldest = more_ended ? items.back().at : INT64_MIN;
  for (const auto& [id, run] : tools_.loop.state().runs) {
    const int64_t at = run.submitted_at.nanoseconds;
    if (tools_.metrics.find(id) != nullptr && at < query.submitted_before && at >= oldest)
      items.push_back({at, {}, {}, &id});
  }
  // Among runs submitted at the same time, ended ones come last: the next page begins after their
  // place.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.at != b.at ? a.at > b.at : a.open != nullptr && b.open == nullptr;
  });
  // The page stays small, however many runs are open. Runs submitted at the same time stay
  // together.
  size_t end = std::min(items.size(), static_cast<size_t>(a_page));
  while (end > 0 && end < items.size() && items[end].at == items[end - 1].at)
    ++end;
  api::RunPage page;
  page.list.more = more_ended || end < items.size();
  page.next = query;
  for (size_t i = 0; i < end; ++i) {
    const Item& item = items[i];
    if (item.open == nullptr) ++page.next.ended_before;
    const RunRecord* record = item.open ? tools_.metrics.find(*item.open) : nullptr;
    page.list.items.push_back(
        record ? text_of(summary_of(*tools_.loop.find(*item.open), *record), record->row.uid)
               : item.text);
  }
  if (end > 0) {
    page.next.submitted_before = items[end - 1].at;
    page.next.row_before = items[end - 1].place;
  }
  return page;
}

Result<api::RunMatch> RunQueries::find_run(const std::string& run, const api::Caller& caller) {
  const auto own = caller.administrator ? std::nullopt : std::optional<int64_t>(caller.uid);
  NSA_TRY_ASSIGN(const store::Found found, tools_.ledger.find(run, own));
  api::RunMatch match;
  match.by_prefix = found.by_prefix;
  for (const store::Found::Owned& one : found.runs)
    match.runs.push_back({one.id, one.uid});
  return match;
}

std::vector<wire::CandidateView> RunQueries::candidates(const api::RunMatch& match) {
  std::vector<wire::CandidateView> list;
  for (const api::RunMatch::Owned& one : match.runs) {
    if (list.size() == kMostCandidates) break;
    wire::RunSummary summary;
    if (const state::Run* run = find_open(one.id))
      summary = tools_.metrics.summary(*run);
    else if (const auto stored = tools_.ledger.run(one.id); stored && *stored)
      summary = stored_.summary_of(**stored);
    list.push_back({one.id, summary.name, summary.state, summary.user, summary.submitted_at});
  }
  return list;
}

Result<wire::RunSummary> RunQueries::run_summary(const RunId& id) {
  if (const state::Run* run = find_open(id)) return tools_.metrics.summary(*run);
  NSA_TRY_ASSIGN(const auto stored, tools_.ledger.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  return stored_.summary_of(*stored);
}

// Fills in everything that needs no file of the run's folder.
Result<wire::RunDetail> RunQueries::detail_of(const RunId& id) {
  NSA_TRY_ASSIGN(const auto stored, tools_.ledger.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  wire::RunDetail detail;
  detail.spec = stored->row.spec;
  detail.estimate = stored->row.estimate;
  detail.run_folder = run_folder(id);
  NSA_TRY_ASSIGN(const auto attempts, tools_.ledger.attempts(id));
  NSA_TRY_ASSIGN(const auto toggles, tools_.ledger.toggles(id));
  NSA_TRY_ASSIGN(const auto events, tools_.ledger.events(id, 0, -kEventsInDetail));
  NSA_TRY_ASSIGN(const auto descendants, tools_.ledger.descendants(id));
  detail.descendants = views_of(descendants);
  detail.attempts = views_of(attempts);
  detail.toggles = views_of(toggles);
  detail.last_events = views_of(events);
  if (options_.job_of) detail.job = options_.job_of(id);
  const state::Run* run = find_open(id);
  if (run == nullptr) {
    detail.summary = stored_.summary_of(*stored);
    detail.hangs = stored->progress.hangs;
    NSA_TRY_ASSIGN(const auto ranks, tools_.ledger.ranks(id, detail.summary.attempt));
    detail.ranks = views_of(ranks);
    for (wire::RankView& rank : detail.ranks)
      recall(rank, stored->progress.memory);
    detail.figures = recalled_figures(stored->progress.memory).named();
    if (const auto spec = spec::from_json(stored->row.spec))
      detail.mfu_of_token_rate = mfu_of_token_rate(*spec, devices_of(detail.ranks));
    return detail;
  }
  const RunRecord& record = tools_.metrics.at(id);
  detail.summary = summary_of(*run, record);
  detail.hangs = hangs_json(*run);
  if (!detail.attempts.empty() && detail.attempts.back().attempt == run->attempt.number)
    detail.attempts.back() = view_of(attempt_row(*run, record));
  for (size_t r = 0; r < run->attempt.ranks.size(); ++r)
    detail.ranks.push_back(
        rank_view(*run, record, static_cast<Rank>(r), tools_.metrics.live(*run)));
  detail.mfu_of_token_rate = mfu_of_token_rate(record.spec, devices_of(detail.ranks));
  detail.figures = record.counters.figures.named();
  return detail;
}

void RunQueries::run_detail(const RunId& id, api::Done<wire::RunDetail> done) {
  auto detail = detail_of(id);
  if (!detail) return done(std::move(detail));
  auto rows = tools_.ledger.checkpoints(id);
  if (!rows) return done(fail(std::move(rows.error())));
  const bool ended = find_open(id) == nullptr;
  const auto as = static_cast<uid_t>(owner_of(tools_.metrics, tools_.ledger, id));
  tools_.readers.run(
      {"uid " + std::to_string(as), "the folder of run " + id},
      [detail = std::move(*detail), rows = std::move(*rows), id, ended, as,
       host = tools_.host]() mutable -> Result<wire::RunDetail> {
        NSA_TRY_ASSIGN(const auto found, host->list_checkpoints(as, detail.run_folder, false));
        detail.checkpoints = views_of(checkpoints_on_disk(std::move(rows), id, found, false));
        if (ended) detail.came = read_came(detail.run_folder, privilege::opener(host, as));
        return std::move(detail);
      },
      std::move(done));
}

Result<api::EventPage> RunQueries::events(const api::EventQuery& query) {
  NSA_TRY_ASSIGN(auto page, tools_.ledger.event_page(query.run, query.after, query.limit));
  return api::EventPage{views_of(page.events), page.next, page.more};
}

Result<int64_t> RunQueries::events_before_last(const RunId& run, int64_t count) {
  return tools_.ledger.events_before_last(run, count);
}

api::Queries::MetricsSource RunQueries::metrics_source(const RunId& run) {
  const auto owner = static_cast<uid_t>(owner_of(tools_.metrics, tools_.ledger, run));
  return {run_folder(run) + "/metrics.jsonl", privilege::opener(tools_.host, owner)};
}

// Checks that the run has the attempt. 0 means the newest.
Result<AttemptNumber> RunQueries::known_attempt(const RunId& run, int wanted) {
  NSA_TRY_ASSIGN(const auto attempts, tools_.ledger.attempts(run));
  if (attempts.empty()) return 0;
  const AttemptNumber attempt = wanted == 0 ? attempts.back().attempt : wanted;
  if (std::none_of(attempts.begin(), attempts.end(),
                   [&](const store::AttemptRow& a) { return a.attempt == attempt; }))
    return fail(ErrorCode::kNotFound, "run " + run + " has no attempt " + std::to_string(attempt),
                "its newest is " + std::to_string(attempts.back().attempt) +
                    "; all of them: nsactl status " + run + " -o wide");
  return attempt;
}

void RunQueries::attempt_spec(const RunId& run, int wanted, api::Done<nlohmann::json> done) {
  const auto attempt = known_attempt(run, wanted);
  if (!attempt) return done(fail(attempt.error()));
  if (*attempt == 0)
    return done(fail(ErrorCode::kNotFound, "run " + run + " has not begun: it has no attempt yet",
                     "its run file: nsactl status " + run + " -o json"));
  const auto as = static_cast<uid_t>(owner_of(tools_.metrics, tools_.ledger, run));
  tools_.readers.run(
      {"uid " + std::to_string(as), "the folder of run " + run},
      [folder = plan::attempt_folder(run_folder(run), *attempt),
       open = privilege::opener(tools_.host, as)] { return read_attempt_spec(folder, open); },
      std::move(done));
}

Result<std::vector<api::LogSource>> RunQueries::logs(const api::LogQuery& query) {
  NSA_TRY_ASSIGN(const AttemptNumber attempt, known_attempt(query.run, query.attempt));
  if (attempt == 0) return std::vector<api::LogSource>{};
  const state::Run* run = find_open(query.run);
  const bool live = run != nullptr && run->attempt.number == attempt &&
                    run->attempt.phase != state::AttemptPhase::kEnded;
  const std::string folder = plan::attempt_folder(run_folder(query.run), attempt);
  NSA_TRY_ASSIGN(const auto ranks, tools_.ledger.ranks(query.run, attempt));
  const FileOpener open = privilege::opener(
      tools_.host, static_cast<uid_t>(owner_of(tools_.metrics, tools_.ledger, query.run)));
  std::vector<api::LogSource> sources;
  for (const store::RankRow& r : ranks)
    if (query.rank < 0 || r.rank == query.rank)
      sources.push_back({attempt, r.rank, plan::rank_log_path(folder, r.rank), live, open});
  if (sources.empty() && query.rank >= 0 && !ranks.empty())
    return fail(ErrorCode::kNotFound,
                "attempt " + std::to_string(attempt) + " of run " + query.run + " has no rank " +
                    std::to_string(query.rank),
                "its last rank is " + std::to_string(ranks.back().rank) + ": nsactl logs " +
                    query.run + " --rank " + std::to_string(ranks.back().rank));
  return sources;
}

void RunQueries::checkpoints(const RunId& run, bool verify,
                             api::Done<std::vector<wire::CheckpointView>> done) {
  auto rows = tools_.ledger.checkpoints(run);
  if (!rows) return done(fail(std::move(rows.error())));
  const auto as = static_cast<uid_t>(owner_of(tools_.metrics, tools_.ledger, run));
  auto work = [rows = std::move(*rows), run, folder = run_folder(run), verify, as,
               host = tools_.host]() -> Result<std::vector<store::CheckpointRow>> {
    NSA_TRY_ASSIGN(const auto found, host->list_checkpoints(as, folder, verify));
    return checkpoints_on_disk(rows, run, found, verify);
  };
  auto answer = [this, run, verify,
                 done = std::move(done)](Result<std::vector<store::CheckpointRow>> listed) {
    if (!listed) return done(fail(std::move(listed.error())));
    if (verify)
      if (auto noted = note_verified(run, *listed); !noted)
        return done(fail(std::move(noted.error())));
    done(views_of(*listed));
  };
  // Reading gigabytes has no time limit, so it must not delay short reads.
  (verify ? tools_.workers : tools_.readers)
      .run({"uid " + std::to_string(as), "the checkpoints of run " + run}, work, answer);
}

Status RunQueries::note_verified(const RunId& run,
                                 const std::vector<store::CheckpointRow>& checkpoints) {
  // Reading gigabytes took a while, so the run may have been removed meanwhile.
  NSA_TRY_ASSIGN(const auto stored, tools_.ledger.run(run));
  if (!stored)
    return fail(ErrorCode::kNotFound, "run " + run + " was removed meanwhile",
                "see nsactl ls --all");
  NSA_TRY_ASSIGN(const auto before, tools_.ledger.checkpoints(run));
  for (const store::CheckpointRow& c : checkpoints) {
    const bool verified = c.state == wire::CheckpointState::kVerified;
    if (!verified && c.state != wire::CheckpointState::kCorrupt) continue;
    tools_.loop.batch().checkpoint_states.push_back({run, c.step, c.folder, c.state, c.problem});
    const bool known = std::any_of(before.begin(), before.end(), [&](const auto& row) {
      return row.step == c.step && row.state == wire::CheckpointState::kCorrupt;
    });
    if (verified || known) continue;
    tools_.loop.batch().events.push_back(
        store::note_row(tools_.clock.wall().nanoseconds, run, c.attempt,
                        wire::EventKind::kCheckpointCorrupt, wire::Severity::kError,
                        "checkpoint of step " + std::to_string(c.step) +
                            " is damaged and will not be resumed from: " + c.problem,
                        {{"step", c.step}, {"folder", c.folder}, {"problem", c.problem}}));
  }
  tools_.loop.flush();
  return {};
}

Result<std::vector<wire::AuditView>> RunQueries::audit(const api::AuditQuery& query) {
  NSA_TRY_ASSIGN(const auto rows, tools_.ledger.audit(query.run, query.uid, query.limit));
  return views_of(rows);
}

std::unique_ptr<api::Subscription>
RunQueries::follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) {
  return followers_.add(run, std::move(line), [this](Followers::Follower& f) { tell_now(f); });
}

// Sends a new follower the current state of everything that it follows.
void RunQueries::tell_now(const Followers::Follower& follower) {
  wire::FollowLine first;
  first.type = wire::LineType::kState;
  if (follower.run.empty()) {
    // Only administrators may follow all runs.
    if (const auto ended = stored_.summaries(kRecentRuns))
      for (auto run = ended->rbegin(); run != ended->rend(); ++run) {
        first.summary = run->summary;
        follower.line(first);
      }
    for (const auto& [id, run] : tools_.loop.state().runs)
      if (const RunRecord* record = tools_.metrics.find(id)) {
        first.summary = summary_of(run, *record);
        follower.line(first);
      }
    return;
  }
  const auto summary = run_summary(follower.run);
  if (!summary) return;
  first.summary = *summary;
  follower.line(first);
  if (find_open(follower.run) != nullptr) return;
  first.type = wire::LineType::kEnd;
  follower.line(first);
}

void RunQueries::on_committed(const Committed& done) {
  for (const store::EventRow& e : done.batch.events)
    followers_.tell_event(view_of(e));
  for (const RunId& id : done.changed)
    if (const state::Run* run = find_open(id)) followers_.tell_state(tools_.metrics.summary(*run));
  const std::set<RunId> moved = tools_.metrics.take_moved();
  for (const RunId& id : followers_.followed()) {
    if (moved.count(id) == 0 || done.changed.count(id) != 0) continue;
    if (const state::Run* run = find_open(id)) followers_.tell_state(tools_.metrics.summary(*run));
  }
}

} // namespace nsa::control
