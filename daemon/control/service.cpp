// What users ask for: runs submitted, stopped, resumed, removed.
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/dataset/fit.h"
#include "common/estimate/estimate.h"
#include "common/spec/parse.h"
#include "common/spec/reader.h"
#include "common/spec/spec_json.h"
#include "common/spec/toggles.h"
#include "daemon/control/controller.h"
#include "daemon/control/node_readings.h"

#include <filesystem>

namespace nsa::control {

namespace {

wire::ProblemView view_of(const spec::Problem& p) {
  return {p.file, p.line, p.column, p.key, p.what, p.next};
}

tl::unexpected<api::SubmitFailure> refuse(Error error) {
  return tl::unexpected(api::SubmitFailure{std::move(error), {}});
}

tl::unexpected<api::SubmitFailure> refuse(const std::string& file,
                                          std::vector<spec::Problem> problems) {
  spec::sort_problems(problems);
  std::vector<wire::ProblemView> views;
  for (const spec::Problem& p : problems)
    views.push_back(view_of(p));
  const size_t count = views.size();
  return tl::unexpected(api::SubmitFailure{
      {ErrorCode::kInvalidArgument,
       file + " has " + std::to_string(count) + (count == 1 ? " mistake" : " mistakes"), ""},
      std::move(views)});
}

// Keys that a resume may change: what is trained stays the same.
bool may_change(const std::string& pair) {
  for (const char* prefix :
       {"run.note=", "run.tags=", "train.steps=", "toggles.", "checkpoint.", "hang.", "restart.",
        "eval.", "metrics.", "inject.", "train.log_interval_steps=", "parallel.shard_update="})
    if (pair.starts_with(prefix)) return true;
  return false;
}

// What this host needs (NVLink multicast off, say) counts as requested where the run file is
// silent: it is then recorded, and the worker finds in effect what was asked for.
void add_host_toggles(spec::RunSpec& spec) {
  for (auto& [name, value] : spec::host_toggles(environment_of_this_process()))
    spec.toggles.emplace(name, value);
}

} // namespace

// What the run will take, where it can be said before it starts.
nlohmann::json Controller::estimate_of(const spec::RunSpec& spec) {
  const auto cpuinfo = read_file("/proc/cpuinfo", 1 << 24);
  return estimate::estimate(
      spec, estimate::choose_placement(spec, spec.parallel.device == "cuda", cpuinfo.value_or("")));
}

Result<spec::RunSpec> Controller::resolve_device(spec::RunSpec spec) const {
  const auto ranks = static_cast<int>(spec.parallel.ranks);
  if (spec.parallel.device != "cpu" && slots_.gpus_pending())
    return fail(ErrorCode::kUnavailable, "the GPUs of this node are still being listed",
                "try again");
  if (spec.parallel.device == "auto") // said in the run's events and in `nsactl status`
    spec.parallel.device = slots_.capacity("cuda") >= ranks ? "cuda" : "cpu";
  const int capacity = slots_.capacity(spec.parallel.device);
  if (ranks <= capacity) return spec;
  const bool cuda = spec.parallel.device == "cuda";
  return fail(ErrorCode::kInvalidArgument,
              "the run needs " + std::to_string(ranks) + (cuda ? " GPUs" : " CPU slots") +
                  ", this node has " + std::to_string(capacity),
              cuda ? "fewer parallel.ranks, or parallel.device = \"cpu\""
                   : "fewer parallel.ranks, or more resources.cpu_slots in nsad.toml");
}

// What may start here: the run file's own mistakes and those that only this node can find (its data
// set, its capacity, what the chosen device forbids) are told at once, each at its place.
tl::expected<spec::RunSpec, api::SubmitFailure>
Controller::admit(spec::Parsed parsed, const std::string& file, const std::string& folder) const {
  spec::resolve_paths(parsed.spec, folder);
  add_host_toggles(parsed.spec);
  std::vector<spec::Problem> problems = parsed.problems;
  const dataset::Fit fit = dataset::check_fit(parsed, file);
  problems.insert(problems.end(), fit.problems.begin(), fit.problems.end());
  const std::string& data = parsed.spec.data.path;
  if (!fit.present && spec::is_sound(parsed, "data.path"))
    problems.push_back(
        spec::problem_at(parsed, file, "data.path", "there is no data set in " + data,
                         "make one: nsactl data prepare --out " + data + " TEXT..."));
  if (!spec::is_sound(parsed, "parallel.ranks") || !spec::is_sound(parsed, "parallel.device"))
    return refuse(file, std::move(problems));
  auto resolved = resolve_device(parsed.spec);
  if (!resolved && resolved.error().code != ErrorCode::kUnavailable)
    problems.push_back(spec::problem_at(parsed, file, "parallel.ranks", resolved.error().what,
                                        resolved.error().next));
  // Rules about the device that "auto" became; the file has passed the others.
  if (resolved && problems.empty())
    for (const spec::Problem& p : spec::validate(*resolved))
      problems.push_back(spec::problem_at(parsed, file, p.key, p.what, p.next));
  if (!problems.empty()) return refuse(file, std::move(problems));
  if (!resolved) return refuse(std::move(resolved.error())); // not the run file's fault
  return std::move(*resolved);
}

wire::SubmitReply Controller::reply_of(const RunId& id) {
  wire::SubmitReply reply;
  reply.id = id;
  const state::Run* run = find_open(id);
  if (run == nullptr) return reply;
  const wire::RunSummary summary = summary_of(*run, records_.at(id));
  reply.name = summary.name;
  reply.state = summary.state;
  reply.reason = summary.reason;
  return reply;
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
Controller::submit(const wire::SubmitRequest& request, const api::Caller& caller) {
  std::vector<std::string> overrides = request.overrides;
  if (!request.name.empty()) overrides.push_back("run.name=" + request.name);
  auto admitted = admit(spec::parse_run_file(request.toml, request.file_name, overrides),
                        request.file_name, request.folder);
  if (!admitted) return tl::unexpected(std::move(admitted.error()));
  const spec::RunSpec& spec = *admitted;
  if (request.dry_run)
    return wire::SubmitReply{"", spec.run.name, "admissible",
                             std::to_string(spec.parallel.ranks) + " ranks on " +
                                 spec.parallel.device,
                             spec::warnings(spec)};

  RunRecord record;
  store::RunRow& row = record.row;
  do {
    row.id = make_run_id(random_);
  } while (records_.count(row.id) != 0 || ledger_.run(row.id).value_or(std::nullopt).has_value());
  row.name = spec.run.name;
  row.user = caller.user;
  row.submitted_at = WallTime::now().nanoseconds;
  row.run_file = request.toml;
  row.file_name = request.file_name;
  row.folder = request.folder;
  row.overrides = overrides;
  for (const std::string& name : spec.run.pass_environment)
    if (const auto found = request.environment.find(name); found != request.environment.end())
      row.environment.insert(*found);
  row.spec = spec::to_json(spec);
  row.spec_digest = spec::digest(spec);
  row.estimate = estimate_of(spec);
  record.spec = spec;
  record.folder = run_folder(row.id);
  if (auto made = prepare_run_folder(record); !made) return refuse(std::move(made.error()));

  const RunId id = row.id;
  batch_.runs.push_back(row);
  records_[id] = std::move(record);
  handle({id, 0, 0,
          state::Submitted{static_cast<int>(spec.parallel.ranks), spec.parallel.device, caller.user,
                           row.name, policy_of(spec, random_())}});
  flush();
  if (ledger_full_)
    return refuse({ErrorCode::kExhausted, "the ledger cannot be written: the disk is full",
                   "free disk space in " + options_.state_folder});
  wire::SubmitReply reply = reply_of(id);
  reply.warnings = spec::warnings(spec);
  return reply;
}

Status Controller::require_ended(const RunId& id, const std::string& verb) const {
  const state::Run* run = find_open(id);
  if (run == nullptr) return {};
  // Its last shim is still being let go: a matter of milliseconds, so the caller asks again.
  if (has_ended(run->phase))
    return fail(ErrorCode::kUnavailable, "run " + id + " is just ending", "try again");
  return fail(ErrorCode::kConflict, "run " + id + " has not ended",
              verb + " it first: nsactl " + verb + " " + id);
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
Controller::resume(const RunId& id, const std::vector<std::string>& overrides,
                   const api::Caller& caller) {
  if (const Status ended = require_ended(id, "stop"); !ended) return refuse(ended.error());
  for (const std::string& pair : overrides)
    if (!may_change(pair))
      return refuse({ErrorCode::kInvalidArgument,
                     "a resume may not change " + pair.substr(0, pair.find('=')),
                     "it may change train.steps, toggles, note and tags, "
                     "parallel.shard_update, and how the run is supervised; submit a new run for "
                     "the rest"});
  const auto forget = [&](auto refusal) {
    state_.runs.erase(id);
    records_.erase(id);
    return refusal;
  };
  if (auto loaded = load_run(id); !loaded) return forget(refuse(std::move(loaded.error())));
  RunRecord& record = records_.at(id);
  std::vector<std::string> all = record.row.overrides;
  all.insert(all.end(), overrides.begin(), overrides.end());
  auto admitted = admit(spec::parse_run_file(record.row.run_file, record.row.file_name, all),
                        record.row.file_name, record.row.folder);
  if (!admitted) return forget(tl::unexpected(std::move(admitted.error())));
  const uint64_t reached = state_.runs.at(id).best_step;
  if (static_cast<uint64_t>(admitted->train.steps) < reached)
    return forget(
        refuse({ErrorCode::kInvalidArgument,
                "train.steps = " + std::to_string(admitted->train.steps) +
                    " lies before the newest checkpoint, of step " + std::to_string(reached),
                "give a later last step"}));
  record.spec = std::move(*admitted);
  record.row.overrides = all;
  record.row.spec = spec::to_json(record.spec);
  record.row.spec_digest = spec::digest(record.spec);
  record.row.estimate = estimate_of(record.spec);
  if (auto made = prepare_run_folder(record); !made) return forget(refuse(std::move(made.error())));
  batch_.runs.push_back(record.row);
  handle(
      {id, 0, 0,
       state::ResumeRequested{caller.user, overrides, static_cast<int>(record.spec.parallel.ranks),
                              record.spec.parallel.device, policy_of(record.spec, random_())}});
  flush();
  return reply_of(id);
}

Status Controller::request(const RunId& id, state::EventBody body) {
  const state::Run* run = find_open(id);
  if (run == nullptr) {
    NSA_TRY_ASSIGN(const auto stored, ledger_.run(id));
    if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
    return fail(ErrorCode::kConflict,
                "run " + id + " has ended already (" + stored->progress.summary.state + ")",
                "go on with it: nsactl resume " + id);
  }
  if (has_ended(run->phase))
    return fail(ErrorCode::kConflict,
                "run " + id + " has ended already (" + std::string(run_phase_name(run->phase)) +
                    ")",
                "go on with it: nsactl resume " + id);
  submit_event({id, 0, 0, std::move(body)});
  return {};
}

Status Controller::stop(const RunId& run, const api::Caller& caller) {
  return request(run, state::StopRequested{caller.user, true});
}

Status Controller::cancel(const RunId& run, const api::Caller& caller) {
  return request(run, state::CancelRequested{caller.user});
}

Status Controller::checkpoint_now(const RunId& id, const api::Caller&) {
  const state::Run* run = find_open(id);
  if (run == nullptr)
    return fail(ErrorCode::kConflict, "run " + id + " is not running: it has ended",
                "its checkpoints: nsactl ckpt ls " + id);
  const auto supervisor = supervisors_.find({id, run->attempt.number});
  if (run->phase != state::RunPhase::kRunning || supervisor == supervisors_.end())
    return fail(ErrorCode::kConflict,
                "run " + id + " is " + std::string(run_phase_name(run->phase)) + ", not running",
                "wait for it: nsactl wait " + id + " --for running");
  supervisor->second->checkpoint_ranks();
  return {};
}

Status Controller::remove(const RunId& id, const api::Caller& caller) {
  NSA_TRY(require_ended(id, "cancel"));
  NSA_TRY_ASSIGN(const auto stored, ledger_.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  // Out of sight at once, deleted behind: checkpoints may be gigabytes.
  const std::filesystem::path folder = run_folder(id), gone = folder.string() + ".removed";
  std::error_code error;
  std::filesystem::rename(folder, gone, error);
  if (error && std::filesystem::exists(folder))
    return fail(ErrorCode::kSystem, "cannot remove " + folder.string() + ": " + error.message());
  NSA_TRY(ledger_.remove(id));
  telemetry_.remove(id);
  (void)background_.submit([gone] {
    std::error_code ignored;
    std::filesystem::remove_all(gone, ignored);
  });
  log::info("control", "run removed", {{"run", id}, {"by", caller.user}});
  return {};
}

void Controller::shut_down(const api::Caller& caller) {
  log::info("control", "asked to leave; ranks go on", {{"by", caller.user}});
  options_.shut_down();
}

} // namespace nsa::control
