#include "daemon/requests/run_requests.h"

#include "common/base/log.h"
#include "common/dataset/manifest.h"
#include "common/spec/parse.h"
#include "daemon/commands/host_launcher.h"
#include "daemon/commands/policies.h"
#include "daemon/queries/run_files.h"
#include "daemon/requests/admission.h"
#include "daemon/requests/resume_rules.h"
#include "daemon/run_metrics/run_loader.h"

#include <algorithm>
#include <filesystem>
#include <optional>

namespace nsa::control {

namespace {

const ChoiceOrText<wire::RunState> kAdmissible("admissible"); // no state: there is no run

// Steps of the checkpoints that a resume can begin with, newest first.
std::vector<uint64_t> usable_steps(const std::vector<store::CheckpointRow>& rows, const RunId& run,
                                   const std::vector<manifest::Found>& found) {
  std::vector<uint64_t> steps;
  for (const store::CheckpointRow& view : checkpoints_on_disk(rows, run, found, false))
    if (view.state != wire::CheckpointState::kCorrupt &&
        view.state != wire::CheckpointState::kDeleted)
      steps.push_back(view.step);
  return steps;
}

// The digest of the data set that `after` replaces, as the checkpoint names it; empty: none.
Result<std::string> replaced_data(const spec::RunSpec& before, const spec::RunSpec& after,
                                  const std::vector<manifest::Found>& found,
                                  std::optional<uint64_t> step, const FileOpener& open) {
  if (before.data.path == after.data.path) return std::string();
  const auto old = dataset::read_manifest(before.data.path, open);
  if (!old)
    return fail(ErrorCode::kInvalidArgument,
                "data.path may change where the tokenizer stays, but the data set of the run "
                "cannot be read: " +
                    old.error().what,
                "bring it back to " + before.data.path + ", or submit a new run");
  NSA_TRY_ASSIGN(const auto now, dataset::read_manifest(after.data.path, open));
  if (old->tokenizer.digest != now.tokenizer.digest)
    return fail(ErrorCode::kInvalidArgument,
                "a resume may not change the tokenizer: " + before.data.path + " has " +
                    old->tokenizer.name + ", " + after.data.path + " has " + now.tokenizer.name +
                    (old->tokenizer.name == now.tokenizer.name ? " with other tokens" : ""),
                "prepare the text with the same tokenizer, or submit a new run");
  for (const manifest::Found& one : found)
    if (one.step == step && one.manifest && one.manifest->data.dataset_digest != now.digest)
      return one.manifest->data.dataset_digest;
  return std::string();
}

} // namespace

// ---- the audit: who asked for what --------------------------------------------------------------

void RunRequests::note_request(const api::Caller& caller, std::string_view verb,
                               const std::string& run, int64_t owner, const Error* why) {
  constexpr size_t kMostWaiting = 10'000; // for a ledger that cannot be written
  if (tools_.loop.batch().audit.size() >= kMostWaiting) return;
  store::AuditRow row;
  row.at = tools_.clock.wall().nanoseconds;
  row.uid = caller.uid;
  row.user = caller.user;
  row.pid = caller.pid;
  row.verb = verb;
  row.run = run;
  row.owner = owner;
  row.result = why == nullptr ? wire::RequestResult::kDone : wire::RequestResult::kRefused;
  if (why != nullptr) row.why = why->what;
  tools_.loop.batch().audit.push_back(std::move(row));
}

void RunRequests::refuse(const api::Caller& caller, std::string_view verb, const std::string& run,
                         int64_t owner, const Error& why) {
  // What is not known yet is asked for again at once, and answered then.
  if (why.code == ErrorCode::kUnavailable) return;
  note_request(caller, verb, run, owner, &why);
  tools_.loop.flush();
}

Status RunRequests::audited(const api::Caller& caller, std::string_view verb, const RunId& run,
                            Status done) {
  if (!done) refuse(caller, verb, run, owner_of(tools_.metrics, tools_.ledger, run), done.error());
  return done;
}

api::SubmitDone RunRequests::audited(const api::Caller& caller, std::string_view verb,
                                     const RunId& run, api::SubmitDone done) {
  return [this, caller, verb, run, done = std::move(done)](auto reply) {
    if (!reply)
      refuse(caller, verb, run, owner_of(tools_.metrics, tools_.ledger, run), reply.error().error);
    done(std::move(reply));
  };
}

// ---- what is asked for --------------------------------------------------------------------------

const state::Run* RunRequests::find_open(const RunId& run) const {
  return tools_.metrics.find(run) == nullptr ? nullptr : tools_.loop.find(run);
}

std::string RunRequests::run_folder(const RunId& run) const {
  return options_.state_folder + "/runs/" + run;
}

NodeCapacity RunRequests::capacity() const {
  return {tools_.slots.capacity(spec::Device::kCpu), tools_.slots.capacity(spec::Device::kCuda),
          tools_.slots.gpus_pending()};
}

wire::SubmitReply RunRequests::reply_of(const RunId& id) {
  wire::SubmitReply reply;
  reply.id = id;
  const state::Run* run = find_open(id);
  if (run == nullptr) return reply;
  const wire::RunSummary summary = tools_.metrics.summary(*run);
  reply.name = summary.name;
  reply.state = summary.state;
  reply.reason = summary.reason;
  return reply;
}

void RunRequests::submit(wire::SubmitRequest request, const api::Caller& caller,
                         api::SubmitDone done) {
  if (!request.dry_run) done = audited(caller, "submit", "", std::move(done));
  if (!request.name.empty()) request.overrides.push_back("run.name=" + request.name);
  RunId id;
  do {
    id = make_run_id(random_); // no run's id or name, so that it will always mean this one
  } while (tools_.metrics.find(id) != nullptr || tools_.ledger.find(id));
  const RunFile file{request.toml, request.file_name, request.folder, request.overrides};
  auto work = [file, node = capacity(), folder = run_folder(id), dry_run = request.dry_run,
               state = options_.state_folder, worker = options_.worker, host = tools_.host,
               as = caller.uid, environment = request.environment] {
    auto admitted = admit(file, node, privilege::opener(host, as));
    if (admitted)
      if (auto able = require_means(admitted->spec, state, 0, *worker); !able)
        admitted = control::refuse(std::move(able.error()));
    if (admitted && !dry_run)
      if (auto made = make_run_folder(*host, as, folder, *admitted, &environment); !made)
        admitted = control::refuse(std::move(made.error()));
    return admitted;
  };
  using Work = tl::expected<Admitted, api::SubmitFailure>;
  tools_.readers.run({caller.user, file.name + " with its data set"}, work,
                     [this, id, request = std::move(request), caller,
                      done = std::move(done)](Result<Work> admitted) {
                       if (!admitted) return done(control::refuse(std::move(admitted.error())));
                       if (!*admitted) return done(tl::unexpected(std::move(admitted->error())));
                       done(accept(id, request, std::move(**admitted), caller));
                     });
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
RunRequests::accept(const RunId& id, const wire::SubmitRequest& request, Admitted admitted,
                    const api::Caller& caller) {
  const spec::RunSpec& spec = admitted.spec;
  if (request.dry_run)
    return wire::SubmitReply{"", spec.run.name, kAdmissible,
                             std::to_string(spec.parallel.ranks) + " ranks on " +
                                 spec::text_of(spec.parallel.device),
                             std::move(admitted.warnings)};
  if (is_run_id(spec.run.name) && tools_.ledger.run(spec.run.name).value_or(std::nullopt)) {
    delete_folder({caller.user, "the folder of a refused run"}, caller.uid, run_folder(id));
    return control::refuse({ErrorCode::kConflict,
                            "run.name: \"" + spec.run.name + "\" is the id of a run",
                            "give another name: --name " + spec.run.name + "-2"});
  }
  RunRecord record;
  store::RunRow& row = record.row;
  row.id = id;
  row.name = spec.run.name;
  row.user = caller.user;
  row.uid = caller.uid;
  row.submitted_at = tools_.clock.wall().nanoseconds;
  row.run_file = request.toml;
  row.file_name = request.file_name;
  row.folder = request.folder;
  row.overrides = request.overrides;
  row.spec = std::move(admitted.spec_json);
  row.spec_digest = admitted.digest;
  row.estimate = std::move(admitted.estimate);
  record.spec = spec;
  record.folder = run_folder(id);
  tools_.loop.batch().runs.push_back(row);
  note_request(caller, "submit", id, row.uid);
  const std::string name = row.name;
  tools_.metrics.add(std::move(record));
  tools_.loop.handle({id, 0, 0,
                      state::Submitted{static_cast<int>(spec.parallel.ranks), spec.parallel.device,
                                       caller.user, name, policy_of(spec, jitter_seed())}});
  tools_.loop.flush();
  if (tools_.loop.ledger_full())
    return control::refuse({ErrorCode::kExhausted, "the ledger cannot be written: the disk is full",
                            "free disk space in " + options_.state_folder});
  wire::SubmitReply reply = reply_of(id);
  reply.warnings = std::move(admitted.warnings);
  return reply;
}

Status RunRequests::require_ended(const RunId& id, const std::string& verb) const {
  const state::Run* run = find_open(id);
  if (run == nullptr) return {};
  // Its last shim is still being let go: a matter of milliseconds, so the caller asks again.
  if (has_ended(run->phase))
    return fail(ErrorCode::kUnavailable, "run " + id + " is ending at this moment", "try again");
  return fail(ErrorCode::kConflict, "run " + id + " has not ended",
              verb + " it first: nsactl " + verb + " " + id);
}

// What must hold before files are read, and again afterwards: others may have asked meanwhile.
Status RunRequests::may_resume(const RunId& id, const std::vector<std::string>& overrides) const {
  NSA_TRY(require_ended(id, "stop"));
  return check_changed_keys(overrides);
}

void RunRequests::resume(const RunId& id, wire::ResumeRequest request, const api::Caller& caller,
                         api::SubmitDone done) {
  if (!request.dry_run) done = audited(caller, "resume", id, std::move(done));
  if (Status may = may_resume(id, request.overrides); !may)
    return done(control::refuse(may.error()));
  auto stored = read_run(tools_.ledger, id, run_folder(id), tools_.loop.state().next_order);
  if (!stored) {
    Error why = std::move(stored.error());
    if (why.code == ErrorCode::kCorrupt)
      why.next = "its files are kept: submit run.toml in " + run_folder(id) +
                 " again, then nsactl rm " + id;
    return done(control::refuse(std::move(why)));
  }
  auto rows = tools_.ledger.checkpoints(id);
  if (!rows) return done(control::refuse(std::move(rows.error())));
  const store::RunRow& row = stored->record.row;
  auto completed = complete_overrides(stored->record.spec, request.overrides);
  if (!completed) return done(control::refuse(std::move(completed.error())));
  request.overrides = std::move(*completed);
  RunFile file{row.run_file, row.file_name, row.folder, row.overrides};
  // Of a run that an older nsad took under a name that would be refused now.
  if (!spec::is_run_name(row.name))
    file.overrides.push_back("run.name=" + spec::run_name_of(row.name));
  file.overrides.insert(file.overrides.end(), request.overrides.begin(), request.overrides.end());
  using Work = tl::expected<Resumable, api::SubmitFailure>;
  int64_t has = 0; // bytes of checkpoints
  for (const store::CheckpointRow& c : *rows)
    if (c.state != wire::CheckpointState::kDeleted) has += static_cast<int64_t>(c.bytes);
  ResumeFacts known{id,
                    stored->run.phase == state::RunState::kCompleted,
                    stored->record.reached_step,
                    {},
                    request.overrides,
                    request.from_start,
                    {}};
  if (request.from_step >= 0) known.from = static_cast<uint64_t>(request.from_step);
  auto work = [file, known, rows = std::move(*rows), before = stored->record.spec, has,
               node = capacity(), folder = run_folder(id), dry_run = request.dry_run,
               state = options_.state_folder, worker = options_.worker, host = tools_.host,
               as = uid_of(row)]() -> Work {
    const FileOpener open = privilege::opener(host, as);
    auto admitted = admit(file, node, open);
    if (!admitted) return tl::unexpected(std::move(admitted.error()));
    if (auto able = require_means(admitted->spec, state, has, *worker); !able)
      return control::refuse(std::move(able.error()));
    const auto found = host->list_checkpoints(as, folder, false);
    if (!found) return control::refuse(found.error());
    ResumeFacts facts = known;
    const std::vector<uint64_t> usable = usable_steps(rows, facts.run, *found);
    if (facts.from)
      if (auto kept = check_from(facts.run, *facts.from, usable); !kept)
        return control::refuse(std::move(kept.error()));
    facts.checkpoint_step = facts.from;
    if (!facts.from && !usable.empty()) facts.checkpoint_step = usable.front();
    if (auto sound = check_resume(facts, before, admitted->spec); !sound)
      return control::refuse(std::move(sound.error()));
    auto replaced = replaced_data(before, admitted->spec, *found, facts.checkpoint_step, open);
    if (!replaced) return control::refuse(std::move(replaced.error()));
    admitted->warnings = resume_warnings(facts, before, admitted->spec);
    std::string exact = exactness(facts.checkpoint_step.value_or(0), before, admitted->spec);
    Resumable resumable{std::move(*admitted), std::move(exact), std::move(*replaced)};
    if (dry_run) return resumable;
    if (auto made = make_run_folder(*host, as, folder, resumable.admitted, nullptr); !made)
      return control::refuse(std::move(made.error()));
    return resumable;
  };
  tools_.readers.run({caller.user, file.name + " with its data set"}, work,
                     [this, id, request = std::move(request), all = file.overrides, caller,
                      done = std::move(done)](Result<Work> admitted) {
                       if (!admitted) return done(control::refuse(std::move(admitted.error())));
                       if (!*admitted) return done(tl::unexpected(std::move(admitted->error())));
                       done(go_on(id, request, all, std::move(**admitted), caller));
                     });
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
RunRequests::go_on(const RunId& id, const wire::ResumeRequest& request,
                   const std::vector<std::string>& overrides, Resumable resumable,
                   const api::Caller& caller) {
  Admitted& admitted = resumable.admitted;
  if (Status may = may_resume(id, request.overrides); !may) return control::refuse(may.error());
  if (request.dry_run)
    return wire::SubmitReply{"", admitted.spec.run.name,       kAdmissible,
                             "", std::move(admitted.warnings), std::move(resumable.exactness)};
  if (auto loaded = load_run(tools_.ledger, id, run_folder(id), tools_.loop, tools_.metrics);
      !loaded)
    return control::refuse(std::move(loaded.error()));
  RunRecord& record = tools_.metrics.at(id);
  record.spec = std::move(admitted.spec);
  record.row.overrides = overrides;
  record.row.spec = std::move(admitted.spec_json);
  record.row.spec_digest = admitted.digest;
  record.row.estimate = std::move(admitted.estimate);
  tools_.loop.batch().runs.push_back(record.row);
  note_request(caller, "resume", id, record.row.uid);
  tools_.loop.handle(
      {id, 0, 0,
       state::ResumeRequested{caller.user, request.overrides,
                              static_cast<int>(record.spec.parallel.ranks),
                              record.spec.parallel.device, policy_of(record.spec, jitter_seed()),
                              request.from_step, resumable.exactness, resumable.replaced_data}});
  tools_.loop.flush();
  wire::SubmitReply reply = reply_of(id);
  reply.warnings = std::move(admitted.warnings);
  reply.exactness = std::move(resumable.exactness);
  return reply;
}

Status RunRequests::request(const RunId& id, const api::Caller& caller, std::string_view verb,
                            state::EventBody body) {
  const state::Run* run = find_open(id);
  ChoiceOrText<wire::RunState> ended;
  if (run == nullptr) {
    NSA_TRY_ASSIGN(const auto stored, tools_.ledger.run(id));
    if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
    ended = stored->progress.summary.state;
  } else if (has_ended(run->phase)) {
    ended = run->phase;
  }
  if (!ended.empty())
    return fail(ErrorCode::kConflict, "run " + id + " has ended already (" + ended.text() + ")",
                "go on with it: nsactl resume " + id);
  note_request(caller, verb, id, tools_.metrics.at(id).row.uid);
  tools_.loop.submit({id, 0, 0, std::move(body)});
  return {};
}

Status RunRequests::stop(const RunId& run, const api::Caller& caller) {
  return audited(caller, "stop", run,
                 request(run, caller, "stop", state::StopRequested{caller.user, true}));
}

Status RunRequests::cancel(const RunId& run, const api::Caller& caller) {
  return audited(caller, "cancel", run,
                 request(run, caller, "cancel", state::CancelRequested{caller.user}));
}

Status RunRequests::checkpoint_now(const RunId& run, const api::Caller& caller) {
  return audited(caller, "checkpoint", run, request_checkpoint(run, caller));
}

Status RunRequests::remove(const RunId& run, const api::Caller& caller) {
  return audited(caller, "remove", run, erase(run, caller));
}

Status RunRequests::request_checkpoint(const RunId& id, const api::Caller& caller) {
  const state::Run* run = find_open(id);
  if (run == nullptr)
    return fail(ErrorCode::kConflict, "run " + id + " is not running: it has ended",
                "its checkpoints: nsactl ckpt ls " + id);
  const AttemptKey key{id, run->attempt.number};
  if (run->phase != state::RunState::kRunning || tools_.connections.get(key) == nullptr)
    return fail(ErrorCode::kConflict, "run " + id + " is " + text_of(run->phase) + ", not running",
                "wait for it: nsactl wait " + id + " --for running");
  note_request(caller, "checkpoint", id, tools_.metrics.at(id).row.uid);
  tools_.loop.flush(); // it may end attempts
  if (ShimConnection* shim = tools_.connections.get(key)) shim->checkpoint_ranks();
  return {};
}

void RunRequests::delete_folder(net::Offload::Job job, uid_t as, const std::string& folder) {
  tools_.workers.run(
      std::move(job),
      [host = tools_.host, as, folder] { return host->remove_run_folder(as, folder); },
      [folder](const Status& removed) {
        if (!removed)
          log::warning("control", "a folder is not removed whole",
                       {{"folder", folder}, {"why", removed.error().what}});
      });
}

Status RunRequests::erase(const RunId& id, const api::Caller& caller) {
  NSA_TRY(require_ended(id, "cancel"));
  NSA_TRY_ASSIGN(const auto stored, tools_.ledger.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  // Out of sight at once, deleted behind: checkpoints may be gigabytes.
  const std::filesystem::path folder = run_folder(id), gone = folder.string() + ".removed";
  std::error_code error;
  std::filesystem::rename(folder, gone, error);
  if (error && std::filesystem::exists(folder))
    return fail(ErrorCode::kSystem, "cannot remove " + folder.string() + ": " + error.message());
  tools_.loop.batch().removed.push_back(id);
  note_request(caller, "remove", id, stored->row.uid);
  tools_.loop
      .flush(); // on a full disk it is done as soon as there is room, which the files below make
  tools_.metrics.removed(id);
  delete_folder(job_of(stored->row, "the folder"), uid_of(stored->row), gone.string());
  log::info("control", "run removed", {{"run", id}, {"by", caller.user}});
  return {};
}

void RunRequests::shut_down(const api::Caller& caller) {
  note_request(caller, "daemon-stop", "", -1);
  tools_.loop.flush();
  log::info("control", "asked to leave; ranks go on", {{"by", caller.user}});
  options_.shut_down();
}

} // namespace nsa::control
