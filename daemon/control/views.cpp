// What users see: lists, details, events, logs, followers, metrics.
#include "common/base/build_info.h"
#include "common/base/file.h"
#include "common/manifest/manifest.h"
#include "common/spec/parse.h"
#include "common/wire/run_row.h"
#include "daemon/control/controller.h"
#include "daemon/control/node_readings.h"
#include "daemon/plan/plan.h"
#include "daemon/state/xid.h"

#include <algorithm>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::control {

namespace {
constexpr int64_t kRecentRuns = 10; // ended ones that a plain list shows
constexpr int64_t kAllRuns = 100'000;
constexpr int kEventsInDetail = 20;
} // namespace

namespace {

// Of a checkpoint whose message never came: what its manifest and its folder say.
void fill_in(wire::CheckpointView& row, const manifest::Found& found) {
  if (row.written_at != 0) return;
  struct stat info{};
  if (::stat(found.folder.c_str(), &info) == 0)
    row.written_at = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (!found.manifest || row.bytes != 0) return;
  row.tokens = found.manifest->tokens;
  row.attempt = found.manifest->attempt;
  row.finite = found.manifest->finite;
  for (const manifest::File& file : found.manifest->files)
    row.bytes += file.bytes;
}

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

std::vector<wire::RunSummary> Controller::list_runs(bool all) {
  std::vector<wire::RunSummary> list;
  for (const auto& [id, run] : state_.runs)
    if (const auto record = records_.find(id); record != records_.end())
      list.push_back(summary_of(run, record->second));
  if (auto ended = ledger_.summaries(all ? kAllRuns : kRecentRuns))
    list.insert(list.end(), ended->begin(), ended->end());
  std::sort(list.begin(), list.end(), [](const wire::RunSummary& a, const wire::RunSummary& b) {
    return a.submitted_at > b.submitted_at;
  });
  return list;
}

std::vector<std::string> Controller::list_rows(bool all) {
  std::vector<std::pair<int64_t, std::string>> list;
  if (auto ended = ledger_.rows(all ? kAllRuns : kRecentRuns)) list = std::move(*ended);
  for (const auto& [id, run] : state_.runs)
    if (const auto record = records_.find(id); record != records_.end())
      list.emplace_back(run.submitted_at.nanoseconds,
                        wire::to_row(summary_of(run, record->second))
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> rows;
  rows.reserve(list.size());
  for (auto& [submitted, row] : list)
    rows.push_back(std::move(row));
  return rows;
}

Result<RunId> Controller::find_run(const std::string& run) {
  return ledger_.find(run);
}

Result<wire::RunDetail> Controller::run_detail(const RunId& id) {
  NSA_TRY_ASSIGN(const auto stored, ledger_.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  wire::RunDetail detail;
  detail.spec = stored->row.spec;
  detail.estimate = stored->row.estimate;
  detail.run_folder = run_folder(id);
  NSA_TRY_ASSIGN(detail.attempts, ledger_.attempts(id));
  NSA_TRY_ASSIGN(detail.toggles, ledger_.toggles(id));
  NSA_TRY_ASSIGN(detail.checkpoints, checkpoints(id, false));
  NSA_TRY_ASSIGN(detail.last_events, ledger_.events(id, 0, -kEventsInDetail));
  const state::Run* run = find_open(id);
  if (run == nullptr) {
    detail.summary = stored->progress.summary;
    detail.hangs = stored->progress.hangs;
    NSA_TRY_ASSIGN(detail.ranks, ledger_.ranks(id, detail.summary.attempt));
    for (wire::RankView& rank : detail.ranks)
      recall(rank, stored->progress.memory);
    if (const auto text = read_file(detail.run_folder + "/summary.json", 1 << 20)) {
      const auto json = nlohmann::json::parse(*text, nullptr, false);
      if (json.is_object()) detail.came = json.value("came", nlohmann::json());
    }
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

Result<std::vector<wire::EventView>> Controller::events(const api::EventQuery& query) {
  return ledger_.events(query.run, query.after, query.newest ? -query.limit : query.limit);
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
  std::vector<api::LogSource> sources;
  for (const wire::RankView& r : ranks)
    if (query.rank < 0 || r.rank == query.rank)
      sources.push_back({attempt, r.rank, plan::rank_log_path(folder, r.rank), live});
  if (sources.empty() && query.rank >= 0 && !ranks.empty())
    return fail(ErrorCode::kNotFound,
                "attempt " + std::to_string(attempt) + " of run " + query.run + " has no rank " +
                    std::to_string(query.rank),
                "its ranks are 0 to " + std::to_string(static_cast<int>(ranks.size()) - 1));
  return sources;
}

// The ledger's rows, held against what lies on the disk: manifests are the truth about checkpoints.
Result<std::vector<wire::CheckpointView>> Controller::checkpoints(const RunId& run, bool verify) {
  NSA_TRY_ASSIGN(auto rows, ledger_.checkpoints(run));
  const auto on_disk = manifest::list(run_folder(run) + "/checkpoints", verify);
  for (wire::CheckpointView& row : rows) {
    const auto found = std::find_if(on_disk.begin(), on_disk.end(),
                                    [&](const manifest::Found& f) { return f.step == row.step; });
    if (found == on_disk.end()) {
      row.state = "deleted";
    } else if (!found->problem.empty()) {
      row.state = "corrupt";
      row.problem = found->problem;
    } else if (verify) {
      row.state = "verified";
    }
  }
  for (const manifest::Found& f : on_disk) {
    const auto known = std::find_if(rows.begin(), rows.end(), [&](const wire::CheckpointView& row) {
      return row.step == f.step;
    });
    if (known != rows.end()) {
      fill_in(*known, f);
      continue;
    }
    wire::CheckpointView row; // written, but its message never came
    row.run = run;
    row.step = f.step;
    row.folder = f.folder.string();
    row.state = !f.problem.empty() ? "corrupt" : verify ? "verified" : "unverified";
    row.problem = f.problem;
    fill_in(row, f);
    rows.push_back(std::move(row));
  }
  std::sort(
      rows.begin(), rows.end(),
      [](const wire::CheckpointView& a, const wire::CheckpointView& b) { return a.step > b.step; });
  return rows;
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

// <run>/run.toml says what was asked for, whole, beside what came of it.
Status Controller::prepare_run_folder(const RunRecord& record) {
  NSA_TRY(make_folder(record.folder + "/checkpoints", 0750));
  return write_file_atomic(record.folder + "/run.toml", spec::print_toml(record.spec, false), 0640);
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
      for (const wire::RunSummary& summary : list_runs(false)) {
        first.summary = summary;
        f->line(first);
      }
      return;
    }
    const auto detail = run_detail(f->run);
    if (!detail) return;
    first.summary = detail->summary;
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
          {"started_at", started_at_.nanoseconds},
          {"state_folder", options_.state_folder},
          {"socket", options_.socket},
          {"metrics", metrics_address_},
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
  for (const EndedSample& ended : ended_samples_) {
    ++snapshot.daemon.runs[ended.sample.state];
    if (state_.runs.count(ended.sample.id) == 0) snapshot.runs.push_back(ended.sample);
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
