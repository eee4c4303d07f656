// What users see: lists, details, events, logs, followers, metrics.
#include "common/base/build_info.h"
#include "common/wire/run_row.h"
#include "daemon/control/controller.h"
#include "daemon/control/node_readings.h"
#include "daemon/control/run_files.h"
#include "daemon/plan/plan.h"
#include "daemon/state/xid.h"

#include <algorithm>
#include <unistd.h>

namespace nsa::control {

namespace {
constexpr int64_t kRecentRuns = 10;                       // ended ones that a plain list shows
constexpr int64_t kRowsAPage = 500, kSummariesAPage = 50; // of a long list, a turn of the loop
constexpr int kEventsInDetail = 20;
constexpr size_t kMostCandidates = 20;
} // namespace

const state::Run* Controller::find_open(const RunId& run) const {
  const auto found = state_.runs.find(run);
  return found == state_.runs.end() || records_.count(run) == 0 ? nullptr : &found->second;
}

const AttemptSupervisor* Controller::supervisor_of(const state::Run& run) const {
  const auto found = supervisors_.find({run.id, run.attempt.number});
  return found == supervisors_.end() ? nullptr : found->second.get();
}

// ---- runs
// -----------------------------------------------------------------------------------------

Result<api::RunPage> Controller::list(const api::RunQuery& query, const api::Caller& caller) {
  const auto text_of = [&](const wire::RunSummary& run, int64_t owner) {
    const wire::RunSummary told = owns(caller, owner) ? run : api::says_little(run);
    return (query.rows ? wire::to_row(told) : nlohmann::json(told))
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::vector<std::pair<int64_t, std::string>> items; // by time of submission
  store::ListedRow place{query.submitted_before, query.row_before, -1, {}};
  const int64_t limit = !query.all ? kRecentRuns : query.rows ? kRowsAPage : kSummariesAPage;
  if (query.rows) {
    NSA_TRY_ASSIGN(auto ended, ledger_.rows(limit, place));
    for (store::ListedRow& row : ended) {
      const auto run = owns(caller, row.uid) ? std::vector<wire::RunSummary>{}
                                             : wire::read_rows("{\"items\":[" + row.text + "]}")
                                                   .value_or(std::vector<wire::RunSummary>(1));
      items.emplace_back(row.submitted_at, run.empty() ? row.text : text_of(run[0], row.uid));
      place = std::move(row);
    }
  } else {
    NSA_TRY_ASSIGN(auto ended, ledger_.summaries(limit, place));
    for (store::OwnedSummary& run : ended) {
      items.emplace_back(run.place.submitted_at, text_of(run.summary, run.place.uid));
      place = std::move(run.place);
    }
  }
  api::RunPage page;
  page.list.more = query.all && static_cast<int64_t>(items.size()) == limit;
  page.next = {query.all, query.rows, place.submitted_at, place.place()};
  // Those that go on and were submitted in the page's stretch of time.
  const int64_t oldest = page.list.more ? place.submitted_at : INT64_MIN;
  for (const auto& [id, run] : state_.runs) {
    const int64_t at = run.submitted_at.nanoseconds;
    const auto record = records_.find(id);
    if (record == records_.end() || at >= query.submitted_before || at < oldest) continue;
    items.emplace_back(at, text_of(summary_of(run, record->second), record->second.row.uid));
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [at, text] : items)
    page.list.items.push_back(std::move(text));
  return page;
}

Result<api::RunMatch> Controller::find_run(const std::string& run, const api::Caller& caller) {
  const auto own = caller.administrator ? std::nullopt : std::optional<int64_t>(caller.uid);
  NSA_TRY_ASSIGN(const store::Found found, ledger_.find(run, own));
  api::RunMatch match;
  match.by_prefix = found.by_prefix;
  for (const store::Found::Owned& one : found.runs)
    match.runs.push_back({one.id, one.uid});
  return match;
}

std::vector<wire::CandidateView> Controller::candidates(const api::RunMatch& match) {
  std::vector<wire::CandidateView> list;
  for (const api::RunMatch::Owned& one : match.runs) {
    if (list.size() == kMostCandidates) break;
    wire::RunSummary summary;
    if (const state::Run* run = find_open(one.id))
      summary = summary_of(*run, records_.at(one.id));
    else if (const auto stored = ledger_.run(one.id); stored && *stored)
      summary = (*stored)->progress.summary;
    list.push_back({one.id, summary.name, summary.state, summary.user, summary.submitted_at});
  }
  return list;
}

Result<wire::RunSummary> Controller::run_summary(const RunId& id) {
  if (const state::Run* run = find_open(id)) return summary_of(*run, records_.at(id));
  NSA_TRY_ASSIGN(const auto stored, ledger_.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  return stored->progress.summary;
}

// All that needs no file of the run's folder.
Result<wire::RunDetail> Controller::detail_of(const RunId& id) {
  NSA_TRY_ASSIGN(const auto stored, ledger_.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  wire::RunDetail detail;
  detail.spec = stored->row.spec;
  detail.estimate = stored->row.estimate;
  detail.run_folder = run_folder(id);
  NSA_TRY_ASSIGN(detail.attempts, ledger_.attempts(id));
  NSA_TRY_ASSIGN(detail.toggles, ledger_.toggles(id));
  NSA_TRY_ASSIGN(detail.checkpoints, ledger_.checkpoints(id));
  NSA_TRY_ASSIGN(detail.last_events, ledger_.events(id, 0, -kEventsInDetail));
  const state::Run* run = find_open(id);
  if (run == nullptr) {
    detail.summary = stored->progress.summary;
    detail.hangs = stored->progress.hangs;
    NSA_TRY_ASSIGN(detail.ranks, ledger_.ranks(id, detail.summary.attempt));
    for (wire::RankView& rank : detail.ranks)
      recall(rank, stored->progress.memory);
    return detail;
  }
  const RunRecord& record = records_.at(id);
  detail.summary = summary_of(*run, record);
  detail.hangs = hangs_json(*run);
  if (!detail.attempts.empty() && detail.attempts.back().attempt == run->attempt.number)
    detail.attempts.back() = attempt_view(*run, record);
  for (size_t r = 0; r < run->attempt.ranks.size(); ++r)
    detail.ranks.push_back(rank_view(*run, record, static_cast<Rank>(r), supervisor_of(*run)));
  return detail;
}

void Controller::run_detail(const RunId& id, api::Done<wire::RunDetail> done) {
  auto detail = detail_of(id);
  if (!detail) return done(std::move(detail));
  const bool ended = find_open(id) == nullptr;
  const auto as = static_cast<uid_t>(owner_of(id));
  readers_.run(
      {"uid " + std::to_string(as), "the folder of run " + id},
      [detail = std::move(*detail), id, ended, as,
       host = options_.host]() mutable -> Result<wire::RunDetail> {
        NSA_TRY_ASSIGN(const auto found, host->list_checkpoints(as, detail.run_folder, false));
        detail.checkpoints = checkpoints_on_disk(std::move(detail.checkpoints), id, found, false);
        if (ended) detail.came = read_came(detail.run_folder, privilege::opener(host, as));
        return std::move(detail);
      },
      std::move(done));
}

Result<api::EventPage> Controller::events(const api::EventQuery& query) {
  NSA_TRY_ASSIGN(auto page, ledger_.event_page(query.run, query.after, query.limit));
  return api::EventPage{std::move(page.events), page.next, page.more};
}

Result<int64_t> Controller::events_before_last(const RunId& run, int64_t count) {
  return ledger_.events_before_last(run, count);
}

Result<std::vector<api::LogSource>> Controller::logs(const api::LogQuery& query) {
  NSA_TRY_ASSIGN(const auto attempts, ledger_.attempts(query.run));
  if (attempts.empty()) return std::vector<api::LogSource>{};
  const AttemptNumber attempt = query.attempt == 0 ? attempts.back().attempt : query.attempt;
  const auto found = std::find_if(attempts.begin(), attempts.end(),
                                  [&](const wire::AttemptView& a) { return a.attempt == attempt; });
  if (found == attempts.end())
    return fail(ErrorCode::kNotFound,
                "run " + query.run + " has no attempt " + std::to_string(attempt),
                "its newest is " + std::to_string(attempts.back().attempt) +
                    "; all of them: nsactl status " + query.run + " -o wide");
  const state::Run* run = find_open(query.run);
  const bool live = run != nullptr && run->attempt.number == attempt &&
                    run->attempt.phase != state::AttemptPhase::kEnded;
  const std::string folder = plan::attempt_folder(run_folder(query.run), attempt);
  NSA_TRY_ASSIGN(const auto ranks, ledger_.ranks(query.run, attempt));
  const FileOpener open = privilege::opener(options_.host, static_cast<uid_t>(owner_of(query.run)));
  std::vector<api::LogSource> sources;
  for (const wire::RankView& r : ranks)
    if (query.rank < 0 || r.rank == query.rank)
      sources.push_back({attempt, r.rank, plan::rank_log_path(folder, r.rank), live, open});
  if (sources.empty() && query.rank >= 0 && !ranks.empty())
    return fail(ErrorCode::kNotFound,
                "attempt " + std::to_string(attempt) + " of run " + query.run + " has no rank " +
                    std::to_string(query.rank),
                "its ranks are 0 to " + std::to_string(static_cast<int>(ranks.size()) - 1));
  return sources;
}

void Controller::checkpoints(const RunId& run, bool verify,
                             api::Done<std::vector<wire::CheckpointView>> done) {
  auto rows = ledger_.checkpoints(run);
  if (!rows) return done(fail(std::move(rows.error())));
  const auto as = static_cast<uid_t>(owner_of(run));
  auto work = [rows = std::move(*rows), run, folder = run_folder(run), verify, as,
               host = options_.host]() -> Result<std::vector<wire::CheckpointView>> {
    NSA_TRY_ASSIGN(const auto found, host->list_checkpoints(as, folder, verify));
    return checkpoints_on_disk(rows, run, found, verify);
  };
  auto answer = [this, run, verify,
                 done = std::move(done)](Result<std::vector<wire::CheckpointView>> listed) {
    if (listed && verify)
      if (auto noted = note_verified(run, *listed); !noted)
        return done(fail(std::move(noted.error())));
    done(std::move(listed));
  };
  // Reading gigabytes has no time limit, and keeps no short read waiting.
  (verify ? workers_ : readers_)
      .run({"uid " + std::to_string(as), "the checkpoints of run " + run}, work, answer);
}

Status Controller::note_verified(const RunId& run,
                                 const std::vector<wire::CheckpointView>& checkpoints) {
  // Reading gigabytes took a while: the run may have been removed meanwhile.
  NSA_TRY_ASSIGN(const auto stored, ledger_.run(run));
  if (!stored) return fail(ErrorCode::kNotFound, "run " + run + " was removed meanwhile");
  NSA_TRY_ASSIGN(const auto before, ledger_.checkpoints(run));
  for (const wire::CheckpointView& c : checkpoints) {
    if (c.state != "verified" && c.state != "corrupt") continue;
    batch_.checkpoint_states.push_back({run, c.step, c.folder, c.state, c.problem});
    const bool known = std::any_of(before.begin(), before.end(), [&](const auto& row) {
      return row.step == c.step && row.state == "corrupt";
    });
    if (c.state == "verified" || known) continue;
    store::EventRow row;
    row.view = {0,
                WallTime::now().nanoseconds,
                run,
                c.attempt,
                -1,
                "checkpoint_corrupt",
                "error",
                "checkpoint of step " + std::to_string(c.step) +
                    " is damaged and will not be resumed from: " + c.problem,
                {{"step", c.step}, {"folder", c.folder}, {"problem", c.problem}}};
    batch_.events.push_back(std::move(row));
  }
  flush();
  return {};
}

// ---- followers
// ------------------------------------------------------------------------------------

struct Controller::Follower {
  std::string run; // empty: all
  std::function<void(const wire::FollowLine&)> line;
};

class Controller::FollowerHandle final : public api::Subscription {
public:
  explicit FollowerHandle(std::shared_ptr<Follower> follower) : follower_(std::move(follower)) {}

private:
  std::shared_ptr<Follower> follower_; // the controller's reference is weak
};

std::unique_ptr<api::Subscription>
Controller::follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) {
  auto follower = std::make_shared<Follower>(Follower{run, std::move(line)});
  followers_.push_back(follower);
  // The lines begin when the caller has its handle.
  loop_.post([this, weak = std::weak_ptr<Follower>(follower)] {
    const auto f = weak.lock();
    if (!f) return;
    wire::FollowLine first;
    first.type = "state";
    if (f->run.empty()) {
      // Administrators alone may follow all runs.
      if (const auto ended = ledger_.summaries(kRecentRuns))
        for (auto run = ended->rbegin(); run != ended->rend(); ++run) {
          first.summary = run->summary;
          f->line(first);
        }
      for (const auto& [id, run] : state_.runs)
        if (const auto record = records_.find(id); record != records_.end()) {
          first.summary = summary_of(run, record->second);
          f->line(first);
        }
      return;
    }
    const auto summary = run_summary(f->run);
    if (!summary) return;
    first.summary = *summary;
    f->line(first);
    if (find_open(f->run) != nullptr) return;
    first.type = "end";
    f->line(first);
  });
  return std::make_unique<FollowerHandle>(std::move(follower));
}

void Controller::publish(const RunId& run, const wire::FollowLine& line) {
  std::erase_if(followers_, [](const std::weak_ptr<Follower>& f) { return f.expired(); });
  const auto current = followers_; // a line may end a follower, and so change the list
  for (const std::weak_ptr<Follower>& weak : current)
    if (const auto f = weak.lock(); f && (f->run.empty() || f->run == run)) f->line(line);
}

void Controller::publish_state(const RunId& id) {
  const state::Run* run = find_open(id);
  if (run == nullptr) return;
  wire::FollowLine line;
  line.type = "state";
  line.summary = summary_of(*run, records_.at(id));
  publish(id, line);
}

void Controller::publish_batch(const store::Batch& done, const std::set<RunId>& changed) {
  for (const store::EventRow& e : done.events) {
    wire::FollowLine line;
    line.type = "event";
    line.event = e.view;
    publish(e.view.run, line);
    if (e.view.kind != "evaluation" && e.view.kind != "checkpoint") continue;
    line.type = e.view.kind;
    line.data = e.view.detail;
    publish(e.view.run, line);
  }
  for (const RunId& run : changed)
    publish_state(run);
}

// ---- the daemon
// -----------------------------------------------------------------------------------

nlohmann::json Controller::daemon_status() {
  const auto [free, size] = disk_space(options_.state_folder);
  nlohmann::json gpus = nlohmann::json::array();
  for (const gpu::Gpu& g : slots_.gpus().list)
    gpus.push_back(
        {{"index", g.index}, {"uuid", g.uuid}, {"name", g.name}, {"memory_bytes", g.memory_bytes}});
  return {{"pid", ::getpid()},
          {"version", build_info().version},
          {"commit", build_info().commit},
          {"started_at", wire::Time(started_at_.nanoseconds)},
          {"state_folder", options_.state_folder},
          {"socket", options_.socket},
          {"metrics", metrics_address_},
          {"loop_delay_seconds", loop_delay_.summary()},
          {"stuck_reads", readers_.stuck()},
          {"node", host_name()},
          {"runs", state_.runs.size()},
          {"attempts", supervisors_.size()},
          {"cpu_slots", slots_.capacity("cpu")},
          {"cpu_slots_used", slots_.used("cpu")},
          {"gpus", gpus},
          {"gpus_used", slots_.used("cuda")},
          {"ledger", ledger_.path().string()},
          {"ledger_ok", !ledger_full_},
          {"reserve_held", ledger_.reserve().held()},
          {"disk_free_bytes", free},
          {"disk_size_bytes", size}};
}

metrics::Snapshot Controller::snapshot(const std::map<std::string, metrics::RouteSample>& http) {
  metrics::Snapshot snapshot;
  snapshot.daemon = daemon_counters_;
  snapshot.daemon.http = http;
  for (const auto& [id, run] : state_.runs) {
    const auto record = records_.find(id);
    if (record == records_.end()) continue;
    ++snapshot.daemon.runs[std::string(run_phase_name(run.phase))];
    const AttemptSupervisor* supervisor = supervisor_of(run);
    // Until the shim has told again what the nsad before us had heard, counters would go back.
    if (supervisor != nullptr && !supervisor->caught_up()) continue;
    snapshot.runs.push_back(metrics_of(run, record->second, supervisor));
  }
  for (const auto& [id, ended] : ended_samples_) {
    if (state_.runs.count(id) != 0) continue; // resumed
    ++snapshot.daemon.runs[ended.sample.state];
    snapshot.runs.push_back(ended.sample);
  }
  // Whoever may scrape would read them.
  for (metrics::RunSample& sample : snapshot.runs) {
    if (options_.config.metrics.names != spec::MetricNames::kAll) sample.user.clear();
    if (options_.config.metrics.names == spec::MetricNames::kNone) sample.name.clear();
  }
  snapshot.daemon.ledger_wal_bytes = ledger_.wal_bytes();
  const auto add_slots = [&](const char* device) {
    const auto used = static_cast<uint64_t>(slots_.used(device));
    snapshot.daemon.slots["used"] += used;
    snapshot.daemon.slots["free"] += static_cast<uint64_t>(slots_.capacity(device)) - used;
  };
  add_slots("cpu");
  add_slots("cuda");
  snapshot.daemon.driver = slots_.gpus().driver;
  for (const gpu::Gpu& g : slots_.gpus().list) {
    metrics::GpuSample& sample = snapshot.daemon.gpus.emplace_back();
    sample.index = g.index;
    sample.uuid = g.uuid;
    sample.model = g.name;
    sample.memory_bytes = g.memory_bytes;
    sample.used_bytes = g.used_bytes;
    sample.processes = g.processes.size();
    sample.utilization_ratio = g.utilization_ratio;
    sample.temperature_celsius = g.temperature_celsius;
    sample.power_watts = g.power_watts;
    sample.sm_clock_hertz = g.sm_clock_hertz;
    if (g.ecc_corrected) sample.ecc_errors["corrected"] = *g.ecc_corrected;
    if (g.ecc_uncorrected) sample.ecc_errors["uncorrected"] = *g.ecc_uncorrected;
    if (const auto found = xids_.find(g.uuid); found != xids_.end())
      sample.xid_errors = found->second;
    // From the start, so that an increase shows the first one, too.
    for (const uint64_t xid : state::hardware_xids())
      sample.xid_errors.try_emplace(xid, 0);
  }
  std::tie(snapshot.daemon.state_free_bytes, snapshot.daemon.state_size_bytes) =
      disk_space(options_.state_folder);
  return snapshot;
}

} // namespace nsa::control
