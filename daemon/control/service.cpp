// What users ask for: runs submitted, stopped, resumed, removed.
#include "common/base/log.h"
#include "daemon/control/controller.h"

#include <filesystem>

namespace nsa::control {

namespace {

// Keys that a resume may change: what is trained stays the same.
bool may_change(const std::string& pair) {
  for (const char* prefix :
       {"run.note=", "run.tags=", "train.steps=", "toggles.", "checkpoint.", "hang.", "restart.",
        "eval.", "metrics.", "inject.", "train.log_interval_steps=", "parallel.shard_update="})
    if (pair.starts_with(prefix)) return true;
  return false;
}

} // namespace

NodeCapacity Controller::capacity() const {
  return {slots_.capacity("cpu"), slots_.capacity("cuda"), slots_.gpus_pending()};
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

void Controller::submit(wire::SubmitRequest request, const api::Caller& caller,
                        api::SubmitDone done) {
  if (!request.name.empty()) request.overrides.push_back("run.name=" + request.name);
  RunId id;
  do {
    id = make_run_id(random_);
  } while (records_.count(id) != 0 || ledger_.run(id).value_or(std::nullopt).has_value());
  const RunFile file{request.toml, request.file_name, request.folder, request.overrides};
  auto work = [file, node = capacity(), folder = run_folder(id), dry_run = request.dry_run] {
    auto admitted = admit(file, node);
    if (admitted && !dry_run)
      if (auto made = make_run_folder(folder, admitted->toml); !made)
        admitted = refuse(std::move(made.error()));
    return admitted;
  };
  using Work = tl::expected<Admitted, api::SubmitFailure>;
  readers_.run({caller.user, file.name + " with its data set"}, work,
               [this, id, request = std::move(request), caller,
                done = std::move(done)](Result<Work> admitted) {
                 if (!admitted) return done(refuse(std::move(admitted.error())));
                 if (!*admitted) return done(tl::unexpected(std::move(admitted->error())));
                 done(accept(id, request, std::move(**admitted), caller));
               });
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
Controller::accept(const RunId& id, const wire::SubmitRequest& request, Admitted admitted,
                   const api::Caller& caller) {
  const spec::RunSpec& spec = admitted.spec;
  if (request.dry_run)
    return wire::SubmitReply{"", spec.run.name, "admissible",
                             std::to_string(spec.parallel.ranks) + " ranks on " +
                                 spec.parallel.device,
                             std::move(admitted.warnings)};
  RunRecord record;
  store::RunRow& row = record.row;
  row.id = id;
  row.name = spec.run.name;
  row.user = caller.user;
  row.submitted_at = WallTime::now().nanoseconds;
  row.run_file = request.toml;
  row.file_name = request.file_name;
  row.folder = request.folder;
  row.overrides = request.overrides;
  for (const std::string& name : spec.run.pass_environment)
    if (const auto found = request.environment.find(name); found != request.environment.end())
      row.environment.insert(*found);
  row.spec = std::move(admitted.spec_json);
  row.spec_digest = admitted.digest;
  row.estimate = std::move(admitted.estimate);
  record.spec = spec;
  record.folder = run_folder(id);
  batch_.runs.push_back(row);
  const std::string name = row.name;
  records_[id] = std::move(record);
  handle({id, 0, 0,
          state::Submitted{static_cast<int>(spec.parallel.ranks), spec.parallel.device, caller.user,
                           name, policy_of(spec, random_())}});
  flush();
  if (ledger_full_)
    return refuse({ErrorCode::kExhausted, "the ledger cannot be written: the disk is full",
                   "free disk space in " + options_.state_folder});
  wire::SubmitReply reply = reply_of(id);
  reply.warnings = std::move(admitted.warnings);
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

// What must hold before files are read, and again afterwards: others may have asked meanwhile.
Status Controller::may_resume(const RunId& id, const std::vector<std::string>& overrides) const {
  NSA_TRY(require_ended(id, "stop"));
  for (const std::string& pair : overrides)
    if (!may_change(pair))
      return fail(ErrorCode::kInvalidArgument,
                  "a resume may not change " + pair.substr(0, pair.find('=')),
                  "it may change train.steps, toggles, note and tags, parallel.shard_update, and "
                  "how the run is supervised; submit a new run for the rest");
  return {};
}

void Controller::resume(const RunId& id, wire::ResumeRequest request, const api::Caller& caller,
                        api::SubmitDone done) {
  if (Status may = may_resume(id, request.overrides); !may) return done(refuse(may.error()));
  auto stored = read_run(id);
  if (!stored) return done(refuse(std::move(stored.error())));
  const uint64_t reached = stored->run.best_step;
  const store::RunRow& row = stored->record.row;
  RunFile file{row.run_file, row.file_name, row.folder, row.overrides};
  file.overrides.insert(file.overrides.end(), request.overrides.begin(), request.overrides.end());
  using Work = tl::expected<Admitted, api::SubmitFailure>;
  auto work = [file, node = capacity(), folder = run_folder(id), reached]() -> Work {
    auto admitted = admit(file, node);
    if (!admitted) return admitted;
    if (static_cast<uint64_t>(admitted->spec.train.steps) < reached)
      return refuse({ErrorCode::kInvalidArgument,
                     "train.steps = " + std::to_string(admitted->spec.train.steps) +
                         " lies before the newest checkpoint, of step " + std::to_string(reached),
                     "give a later last step"});
    if (auto made = make_run_folder(folder, admitted->toml); !made)
      return refuse(std::move(made.error()));
    return admitted;
  };
  readers_.run({caller.user, file.name + " with its data set"}, work,
               [this, id, request = std::move(request), all = file.overrides, caller,
                done = std::move(done)](Result<Work> admitted) {
                 if (!admitted) return done(refuse(std::move(admitted.error())));
                 if (!*admitted) return done(tl::unexpected(std::move(admitted->error())));
                 done(go_on(id, request, all, std::move(**admitted), caller));
               });
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
Controller::go_on(const RunId& id, const wire::ResumeRequest& request,
                  const std::vector<std::string>& overrides, Admitted admitted,
                  const api::Caller& caller) {
  if (Status may = may_resume(id, request.overrides); !may) return refuse(may.error());
  if (auto loaded = load_run(id); !loaded) return refuse(std::move(loaded.error()));
  RunRecord& record = records_.at(id);
  record.spec = std::move(admitted.spec);
  record.row.overrides = overrides;
  record.row.spec = std::move(admitted.spec_json);
  record.row.spec_digest = admitted.digest;
  record.row.estimate = std::move(admitted.estimate);
  batch_.runs.push_back(record.row);
  handle({id, 0, 0,
          state::ResumeRequested{caller.user, request.overrides,
                                 static_cast<int>(record.spec.parallel.ranks),
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
  workers_.run(
      {"", "what is left of run " + id},
      [gone]() -> Status {
        std::error_code ignored;
        std::filesystem::remove_all(gone, ignored);
        return {};
      },
      [](const Status&) {});
  log::info("control", "run removed", {{"run", id}, {"by", caller.user}});
  return {};
}

void Controller::shut_down(const api::Caller& caller) {
  log::info("control", "asked to leave; ranks go on", {{"by", caller.user}});
  options_.shut_down();
}

} // namespace nsa::control
