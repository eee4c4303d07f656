#include "daemon/control/recovery.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/spec/ladder.h"
#include "common/spec/parse.h"
#include "common/spec/spec_json.h"
#include "daemon/commands/policies.h"
#include "daemon/requests/admission.h"
#include "daemon/run_metrics/run_loader.h"
#include "daemon/shim/client/attempt_files.h"

#include <poll.h>
#include <pwd.h>
#include <sys/stat.h>
#include <thread>

namespace nsa::control {

namespace {

constexpr size_t kMaxFile = size_t{4} << 20;
constexpr size_t kMaxRanks = 4096;

template <class T, class From>
Result<T> read_as(const std::filesystem::path& path, const FileOpener& open, From from_json) {
  NSA_TRY_ASSIGN(const std::string text, read_file(path, kMaxFile, open));
  NSA_TRY_ASSIGN(const nlohmann::json json, parse_json(text, path.string(), {kMaxFile}));
  Result<T> value = from_json(json);
  if (!value) return fail(std::move(value).error().within(path.string()));
  return value;
}

// The files that nsad wrote when it started the attempt, to be compared with the shim that was
// found.
struct Evidence {
  wire::LaunchPlan plan;
  spec::RunSpec spec; // the attempt's settings, on its rungs
  spec::RunSpec base; // the run's settings, at the top of its ladder
  spec::Ladder ladder;
};

// Reads the run's ladder and the attempt's rungs. The submitter owns the files, so the rungs must
// yield the attempt's own settings. If they do not, as with files of an older nsad, the run
// continues with these settings and without a ladder.
Status note_ladder(Evidence& evidence, const std::filesystem::path& folder) {
  wire::LaunchPlan& plan = evidence.plan;
  evidence.base = evidence.spec;
  if (!plan.run_spec.is_null()) {
    NSA_TRY_ASSIGN(evidence.base, spec::from_json(plan.run_spec));
  }
  if (spec::validate(evidence.base).empty()) {
    evidence.ladder = spec::ladder_of(evidence.base);
    if (state::are_rungs_of(evidence.ladder, plan.rungs) &&
        spec::digest(spec::on_rungs(evidence.base, evidence.ladder, plan.rungs)) ==
            spec::digest(evidence.spec))
      return {};
  }
  log::warning("control", "the ladder of a run is not known; it keeps its present settings",
               {{"attempt", folder.string()}});
  plan.rungs.clear();
  evidence.ladder = {};
  evidence.base = evidence.spec;
  const spec::RestartSection defaults;
  spec::RestartSection& restart = evidence.base.restart;
  restart.fallback.clear();
  restart.ladder = defaults.ladder;
  restart.climb_after_steps = defaults.climb_after_steps;
  restart.shortest_sequence = defaults.shortest_sequence;
  return {};
}

Result<Evidence> read_evidence(const LiveShim& shim, const FileOpener& open) {
  const std::filesystem::path folder = shim.folder;
  Evidence evidence;
  NSA_TRY_ASSIGN(evidence.plan, read_as<wire::LaunchPlan>(
                                    folder / shim::kLaunchName, open, [](const nlohmann::json& j) {
                                      return wire::body_as<wire::LaunchPlan>(j);
                                    }));
  NSA_TRY_ASSIGN(evidence.spec,
                 read_as<spec::RunSpec>(folder / "spec.json", open, spec::from_json));
  const wire::LaunchPlan& plan = evidence.plan;
  const size_t ranks = plan.ranks.size();
  if (plan.run_id != shim.run || plan.attempt != shim.attempt || plan.token.empty() || ranks == 0 ||
      ranks > kMaxRanks || ranks != static_cast<size_t>(evidence.spec.parallel.ranks))
    return fail(ErrorCode::kCorrupt,
                (folder / shim::kLaunchName).string() + " is not about this attempt");
  NSA_TRY(note_ladder(evidence, folder));
  return evidence;
}

std::string name_of(uid_t user) {
  const passwd* entry = ::getpwuid(user);
  return entry != nullptr ? entry->pw_name : std::to_string(user);
}

int64_t written_at(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return WallTime::now().nanoseconds;
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

void note_spec(store::RunRow& row, const spec::RunSpec& spec) {
  row.spec = spec::to_json(spec);
  row.spec_digest = spec::digest(spec);
  row.estimate = estimate_of(spec);
}

bool goes_on(state::AttemptPhase phase) {
  return phase >= state::AttemptPhase::kLaunching && phase < state::AttemptPhase::kEnded;
}

} // namespace

bool Recovery::knows(const LiveShim& shim) const {
  const state::Run* found = tools_.loop.find(shim.run);
  if (found == nullptr) return false;
  const state::Run& run = *found;
  return run.unreleased.count(shim.attempt) != 0 ||
         (run.attempt.number == shim.attempt && goes_on(run.attempt.phase));
}

Status Recovery::take_up_live_shims() {
  for (const LiveShim& shim : find_live_shims(state_folder_)) {
    if (knows(shim)) continue;
    // If the ledger cannot be read now, no attempt may be ended.
    NSA_TRY_ASSIGN(const auto stored, tools_.ledger.run(shim.run));
    if (auto recovered = recover(shim, stored.has_value()); !recovered)
      end_unknown(shim, recovered.error());
  }
  return {};
}

// Restores the run from the ledger, or makes a record from its files.
Status Recovery::recall_or_make_record(const LiveShim& shim, const spec::RunSpec& spec,
                                       bool stored) {
  const RunId& id = shim.run;
  if (tools_.metrics.find(id) != nullptr) return {};
  const std::string folder = state_folder_ + "/runs/" + id;
  if (stored) {
    if (auto loaded = load_run(tools_.ledger, id, folder, tools_.loop, tools_.metrics)) return {};
    tools_.loop.forget(id);
    tools_.metrics.erase(id);
  }
  // The run may have been set aside because its rows are damaged. Its files replace them.
  std::erase_if(tools_.loop.batch().damaged_runs,
                [&](const store::DamagedRun& run) { return run.run == id; });
  RunRecord record;
  store::RunRow& row = record.row;
  row.id = id;
  row.name = spec.run.name;
  row.user = name_of(shim.user);
  row.uid = shim.user;
  record.folder = folder;
  row.folder = record.folder;
  row.file_name = "run.toml";
  row.submitted_at = written_at(record.folder + "/run.toml");
  row.run_file = spec::print_toml(spec, false);
  note_spec(row, spec);
  note_origin(row, spec);
  record.spec = spec;
  tools_.loop.batch().runs.push_back(row);
  tools_.loop.batch().made_anew.push_back(id);
  tools_.metrics.add(std::move(record));
  tools_.metrics.recall_losses(id);
  return {};
}

Status Recovery::recover(const LiveShim& shim, bool stored) {
  NSA_TRY_ASSIGN(const Evidence evidence,
                 read_evidence(shim, privilege::opener(tools_.host, shim.user)));
  NSA_TRY(recall_or_make_record(shim, evidence.base, stored));
  RunRecord& record = tools_.metrics.at(shim.run);
  if (const state::Run* found = tools_.loop.find(shim.run)) {
    const state::Run& run = *found;
    const bool over = has_ended(run.phase) && run.attempt.number == shim.attempt;
    if (over || run.attempt.number > shim.attempt) {
      const std::string why = over ? "the run has ended" : "a later attempt of the run is known";
      if (has_ended(run.phase)) {
        tools_.loop.forget(shim.run);
        tools_.metrics.erase(shim.run);
      }
      return fail(ErrorCode::kConflict, why);
    }
  }
  state::RunRecovered recovered;
  recovered.ranks = static_cast<int>(evidence.plan.ranks.size());
  recovered.device = evidence.spec.parallel.device;
  recovered.user = record.row.user;
  recovered.name = record.row.name;
  recovered.policy = policy_of(evidence.spec, random_());
  recovered.token = evidence.plan.token;
  recovered.first_step = evidence.plan.first_step;
  recovered.checkpoint_folder = evidence.plan.checkpoint_folder;
  recovered.boot_id = shim.identity.boot_id;
  recovered.shim_pid = shim.identity.pid;
  recovered.shim_start_time_ticks = shim.identity.start_time_ticks;
  std::vector<std::string> slots = evidence.plan.slots;
  slots.resize(evidence.plan.ranks.size());
  slots.insert(slots.end(), evidence.plan.spare_slots.begin(), evidence.plan.spare_slots.end());
  tools_.slots.release(shim.run);
  recovered.slots = tools_.slots.take_back_unknown(shim.run, recovered.device, std::move(slots));
  tools_.slots.set_shim(shim.run, {state_folder_, shim.run, shim.identity.boot_id,
                                   shim.identity.pid, shim.identity.start_time_ticks});
  const auto checkpoints = tools_.host->list_checkpoints(shim.user, record.folder, false);
  for (const manifest::Found& found : checkpoints.value_or(std::vector<manifest::Found>{}))
    if (found.problem.empty()) recovered.best_step = std::max(recovered.best_step, found.step);
  recovered.ladder = evidence.ladder;
  recovered.rungs = evidence.plan.rungs;
  // The submitter owns the file, so check it.
  if (evidence.plan.rung_taken_after.value())
    recovered.rung_taken_after = evidence.plan.rung_taken_after;
  // The ledger may hold the settings from before a resume that changed them.
  if (record.row.spec_digest != spec::digest(evidence.base)) {
    note_spec(record.row, evidence.base);
    tools_.loop.batch().runs.push_back(record.row);
  }
  record.spec = evidence.base;
  record.rungs.clear(); // the event sets the attempt's own rungs
  log::warning("control", "a live attempt was not in the ledger; its run is recovered",
               {{"run", shim.run},
                {"attempt", std::to_string(shim.attempt)},
                {"shim", std::to_string(shim.identity.pid)}});
  tools_.loop.handle({shim.run, shim.attempt, 0, std::move(recovered)});
  return {};
}

// Ends the whole attempt, so that none of its processes runs beside known ones. Its checkpoints
// stay.
void Recovery::end_unknown(const LiveShim& shim, const Error& why) {
  log::error("control", "a live attempt is not in the ledger and cannot be recovered; ending it",
             {{"run", shim.run}, {"attempt", std::to_string(shim.attempt)}, {"why", why.what}});
  if (auto pidfd = proc::open_identified(shim.identity)) {
    (void)tools_.host->kill_shim(shim.user, pidfd->get());
    pollfd ended{pidfd->get(), POLLIN, 0};
    constexpr int kLimit = 5000; // ms
    (void)::poll(&ended, 1, kLimit);
  }
  // Ranks die with their parent. This ends the processes that they had started.
  constexpr int kRounds = 100;
  for (int i = 0; i < kRounds; ++i) {
    const auto left = tools_.host->end_leftovers(shim.user, shim.folder);
    if (!left || *left == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  tools_.loop.note(
      store::note_row(WallTime::now().nanoseconds, shim.run, shim.attempt,
                      wire::EventKind::kUnknownAttemptEnded, wire::Severity::kError,
                      "attempt " + std::to_string(shim.attempt) +
                          " lived and the ledger did not know it; it was ended, since " + why.what,
                      nlohmann::json::object()));
}

} // namespace nsa::control
