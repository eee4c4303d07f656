#include "daemon/requests/run_requests.h"

#include "common/base/log.h"
#include "common/spec/ladder.h"
#include "common/spec/origin.h"
#include "common/spec/parse.h"
#include "common/spec/spec_json.h"
#include "daemon/commands/host_launcher.h"
#include "daemon/commands/policies.h"
#include "daemon/queries/run_files.h"
#include "daemon/requests/admission.h"
#include "daemon/requests/origin_rules.h"
#include "daemon/requests/replaced_data.h"
#include "daemon/requests/resume_rules.h"
#include "daemon/run_metrics/run_loader.h"

#include <algorithm>
#include <filesystem>
#include <optional>

namespace nsa::control {

namespace {

// This is not a RunState, because no run exists.
const ChoiceOrText<wire::RunState> kAdmissible("admissible");

struct ResumeInput {
  RunFile file;
  ResumeFacts facts;
  std::vector<store::CheckpointRow> rows;
  // `before` is the last attempt's, with its rungs; `base` is the run file's.
  spec::RunSpec before, base;
  spec::Ladder ladder;
  std::vector<int> rungs; // rungs in effect
  int64_t has = 0;        // bytes of checkpoints
  NodeCapacity node;
  std::string folder, state_folder;
  bool dry_run = false;
  uid_t as = 0;
};

// Reads the run's files: call it on a thread that may wait for them.
tl::expected<Resumable, api::SubmitFailure>
judge_resume(const ResumeInput& in, WorkerCheck& worker,
             const std::shared_ptr<privilege::Host>& host) {
  const FileOpener open = privilege::opener(host, in.as);
  auto admitted = admit(in.file, in.node, open);
  if (!admitted) return tl::unexpected(std::move(admitted.error()));
  if (auto able = require_means(admitted->spec, in.state_folder, in.has, worker); !able)
    return control::refuse(std::move(able.error()));
  const auto found = host->list_checkpoints(in.as, in.folder, false);
  if (!found) return control::refuse(found.error());
  ResumeFacts facts = in.facts;
  const std::vector<uint64_t> usable = usable_steps(in.rows, facts.run, *found);
  if (facts.from)
    if (auto kept = check_from(facts.run, *facts.from, usable); !kept)
      return control::refuse(std::move(kept.error()));
  facts.checkpoint_step = facts.from;
  if (!facts.from && !usable.empty()) facts.checkpoint_step = usable.front();
  // The run stays on its rungs if its ladder has not changed (state::ResumeRequested).
  const bool stays = spec::ladder_of(admitted->spec) == in.ladder;
  const spec::RunSpec after =
      stays ? spec::on_rungs(admitted->spec, in.ladder, in.rungs) : admitted->spec;
  if (auto sound = check_resume(facts, in.base, admitted->spec); !sound)
    return control::refuse(std::move(sound.error()));
  auto replaced = replaced_data(in.base, admitted->spec, *found, facts.checkpoint_step, open);
  if (!replaced) return control::refuse(std::move(replaced.error()));
  admitted->warnings = admitted->old_names;
  for (std::string& warning : resume_warnings(facts, in.base, admitted->spec))
    admitted->warnings.push_back(std::move(warning));
  std::string exact = exactness(facts.checkpoint_step.value_or(0), in.before, after);
  Resumable resumable{std::move(*admitted), std::move(exact), std::move(*replaced)};
  if (in.dry_run) return resumable;
  if (auto made = make_run_folder(*host, in.as, in.folder, resumable.admitted, nullptr); !made)
    return control::refuse(std::move(made.error()));
  return resumable;
}

} // namespace

// ---- the audit: who asked for what --------------------------------------------------------------

void RunRequests::note_request(const api::Caller& caller, std::string_view verb,
                               const std::string& run, int64_t owner, const Error* why) {
  // Bounds the rows that wait while the ledger cannot be written.
  constexpr size_t kMostWaiting = 10'000;
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
  // The client repeats such a request at once, so only the final answer is audited.
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
    id = make_run_id(random_); // no run has this id or name, so it always means this run
  } while (tools_.metrics.find(id) != nullptr || tools_.ledger.find(id));
  const RunFile file{request.toml, request.file_name, request.folder, request.overrides};
  auto work = [file, node = capacity(), folder = run_folder(id), dry_run = request.dry_run,
               state = options_.state_folder, worker = options_.worker, host = tools_.host,
               as = caller.uid, environment = request.environment] {
    auto admitted = admit(file, node, privilege::opener(host, as));
    if (admitted)
      if (auto able = require_means(admitted->spec, state, 0, *worker); !able)
        admitted = control::refuse(std::move(able.error()));
    if (admitted && !dry_run && admitted->spec.origin.checkpoint.empty())
      if (auto made = make_run_folder(*host, as, folder, *admitted, &environment); !made)
        admitted = control::refuse(std::move(made.error()));
    return admitted;
  };
  using Work = tl::expected<Admitted, api::SubmitFailure>;
  tools_.readers.run({caller.user, file.name + " with its data set"}, work,
                     [this, id, file, request = std::move(request), caller,
                      done = std::move(done)](Result<Work> admitted) {
                       if (!admitted) return done(control::refuse(std::move(admitted.error())));
                       if (!*admitted) return done(tl::unexpected(std::move(admitted->error())));
                       if ((*admitted)->spec.origin.checkpoint.empty())
                         return done(accept(id, request, std::move(**admitted), caller));
                       begin_from(id, file, request, std::move(**admitted), caller, done);
                     });
}

tl::expected<Parent, api::SubmitFailure> RunRequests::parent_of(const spec::Origin& origin,
                                                                const api::Caller& caller) {
  const RunId& id = origin.run;
  auto stored = tools_.ledger.run(id);
  if (!stored) return control::refuse(std::move(stored.error()));
  if (!*stored)
    return control::refuse(
        {ErrorCode::kNotFound, "origin.checkpoint: there is no run " + id, "see nsactl ls --all"});
  const store::RunRow& row = (*stored)->row;
  // nsad reads and shares the parent's files as the caller, so an administrator may not use another
  // user's run. If one of the two is root, or the owner is unknown, nsad serves a single user.
  const bool another = row.uid > 0 && caller.uid != 0 && row.uid != int64_t{caller.uid};
  if (another || !api::owns(caller, row.uid))
    return control::refuse({ErrorCode::kPermission,
                            "origin.checkpoint: run " + id + " belongs to " +
                                (row.user.empty() ? "somebody else" : row.user),
                            "begin with a run of your own: nsactl ls --all"});
  auto spec = spec::from_json(row.spec);
  auto checkpoints = tools_.ledger.checkpoints(id);
  if (!spec || !checkpoints)
    return control::refuse({ErrorCode::kCorrupt,
                            "origin.checkpoint: what is stored of run " + id + " cannot be read: " +
                                (spec ? checkpoints.error() : spec.error()).what,
                            "begin with another run"});
  return Parent{origin, std::move(*spec), run_folder(id), std::move(*checkpoints)};
}

void RunRequests::begin_from(const RunId& id, RunFile file, wire::SubmitRequest request,
                             Admitted admitted, const api::Caller& caller, api::SubmitDone done) {
  // The run file's rules have checked the format.
  const auto origin = spec::parse_origin(admitted.spec.origin.checkpoint);
  if (!origin)
    return done(
        control::refuse({ErrorCode::kInternal, "origin.checkpoint is no ID@STEP any more", ""}));
  auto parent = parent_of(*origin, caller);
  if (!parent) return done(tl::unexpected(std::move(parent.error())));
  using Work = tl::expected<Admitted, api::SubmitFailure>;
  auto work = [file = std::move(file), parent = std::move(*parent), admitted = std::move(admitted),
               folder = run_folder(id), dry_run = request.dry_run, host = tools_.host,
               as = static_cast<uid_t>(caller.uid),
               environment = request.environment]() mutable -> Work {
    const auto found = host->list_checkpoints(as, parent.folder, false);
    if (!found) return control::refuse(found.error());
    if (auto fits = check_parent(file, admitted.spec, parent, *found, privilege::opener(host, as));
        !fits)
      return tl::unexpected(std::move(fits.error()));
    if (dry_run) return std::move(admitted);
    Status made = make_run_folder(*host, as, folder, admitted, &environment);
    if (made)
      made = host->share_checkpoint(
          as, parent.folder + "/checkpoints/" + manifest::folder_name(parent.origin.step),
          folder + "/" + spec::kOriginFolder, admitted.spec.origin.optimizer);
    if (made) return std::move(admitted);
    (void)host->remove_run_folder(as, folder); // nobody knows this run yet
    Error error = std::move(made.error()).within("origin.checkpoint");
    error.next = "choose another checkpoint: nsactl ckpt ls --verify " + parent.origin.run;
    return control::refuse(std::move(error));
  };
  tools_.workers.run({caller.user, "the weights of " + spec::text_of(*origin)}, std::move(work),
                     [this, id, request = std::move(request), caller,
                      done = std::move(done)](Result<Work> checked) {
                       if (!checked) return done(control::refuse(std::move(checked.error())));
                       if (!*checked) return done(tl::unexpected(std::move(checked->error())));
                       done(accept(id, request, std::move(**checked), caller));
                     });
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
RunRequests::accept(const RunId& id, const wire::SubmitRequest& request, Admitted admitted,
                    const api::Caller& caller) {
  const spec::RunSpec& spec = admitted.spec;
  if (request.dry_run) return dry_reply(spec, std::move(admitted.warnings));
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
  note_origin(row, spec);
  row.estimate = std::move(admitted.estimate);
  record.spec = spec;
  record.folder = run_folder(id);
  tools_.loop.batch().runs.push_back(row);
  note_request(caller, "submit", id, row.uid);
  const std::string name = row.name;
  tools_.metrics.add(std::move(record));
  tools_.loop.handle(
      {id, 0, 0,
       state::Submitted{static_cast<int>(spec.parallel.ranks), spec.parallel.device, caller.user,
                        name, policy_of(spec, jitter_seed()), spec::ladder_of(spec)}});
  tools_.loop.flush();
  if (tools_.loop.ledger_full())
    return control::refuse({ErrorCode::kExhausted, "the ledger cannot be written: the disk is full",
                            "free disk space in " + options_.state_folder});
  wire::SubmitReply reply = reply_of(id);
  reply.warnings = std::move(admitted.warnings);
  if (!spec.origin.checkpoint.empty()) reply.exactness = beginning(spec);
  return reply;
}

Status RunRequests::require_ended(const RunId& id, const std::string& verb) const {
  const state::Run* run = find_open(id);
  if (run == nullptr) return {};
  // The last shim is about to end, within milliseconds, so the caller asks again.
  if (has_ended(run->phase))
    return fail(ErrorCode::kUnavailable, "run " + id + " is ending at this moment", "try again");
  return fail(ErrorCode::kConflict, "run " + id + " has not ended",
              verb + " it first: nsactl " + verb + " " + id);
}

// These conditions must hold before files are read. They are checked again afterwards, because
// other requests may have come meanwhile.
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
  // A change that a rung made is not a change by a person.
  const auto base = spec::from_json(row.spec);
  if (!base) return done(control::refuse({ErrorCode::kCorrupt, base.error().what, ""}));
  auto completed = complete_overrides(*base, request.overrides);
  if (!completed) return done(control::refuse(std::move(completed.error())));
  request.overrides = std::move(*completed);
  RunFile file{row.run_file, row.file_name, row.folder, row.overrides};
  // An older nsad accepted a run name that would be refused now.
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
  ResumeInput input{file,       std::move(known),   std::move(*rows),      stored->record.spec,
                    *base,      stored->run.ladder, stored->record.rungs,  has,
                    capacity(), run_folder(id),     options_.state_folder, request.dry_run,
                    uid_of(row)};
  auto work = [input = std::move(input), worker = options_.worker, host = tools_.host] {
    return judge_resume(input, *worker, host);
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
  const spec::RunSpec base = admitted.spec;
  record.spec = std::move(admitted.spec);
  record.rungs.clear(); // they are set again when the event is applied
  record.fallback.clear();
  record.row.overrides = overrides;
  record.row.spec = std::move(admitted.spec_json);
  record.row.spec_digest = admitted.digest;
  record.row.estimate = std::move(admitted.estimate);
  tools_.loop.batch().runs.push_back(record.row);
  note_request(caller, "resume", id, record.row.uid);
  tools_.loop.handle(
      {id, 0, 0,
       state::ResumeRequested{
           caller.user, request.overrides, static_cast<int>(record.spec.parallel.ranks),
           record.spec.parallel.device, policy_of(record.spec, jitter_seed()), request.from_step,
           resumable.exactness, resumable.replaced_data, spec::ladder_of(base)}});
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
    ended = stored->progress.state;
  } else if (has_ended(run->phase)) {
    ended = run->phase;
  }
  if (!ended.empty())
    return fail(ErrorCode::kConflict, "run " + id + " has ended already (" + ended.text() + ")",
                ended == wire::RunState::kCompleted ? "its result: nsactl status " + id
                                                    : "continue it: nsactl resume " + id);
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
  tools_.loop.flush(); // the flush may end attempts
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
  // Renaming removes the run from sight at once. The files are deleted afterwards, since
  // checkpoints may be gigabytes.
  const std::filesystem::path folder = run_folder(id), gone = folder.string() + ".removed";
  std::error_code error;
  std::filesystem::rename(folder, gone, error);
  if (error && std::filesystem::exists(folder))
    return fail(ErrorCode::kSystem, "cannot remove " + folder.string() + ": " + error.message(),
                "look at who owns it: ls -ld " + folder.string());
  tools_.loop.batch().removed.push_back(id);
  note_request(caller, "remove", id, stored->row.uid);
  tools_.loop
      .flush(); // if the disk is full, nsad retries the commit; the deletion below makes room
  tools_.metrics.removed(id);
  delete_folder(job_of(stored->row, "the folder"), uid_of(stored->row), gone.string());
  log::info("control", "run removed", {{"run", id}, {"by", caller.user}});
  return {};
}

void RunRequests::shut_down(const api::Caller& caller) {
  note_request(caller, "daemon-stop", "", -1);
  tools_.loop.flush();
  log::info("control", "asked to leave; ranks continue", {{"by", caller.user}});
  options_.shut_down();
}

} // namespace nsa::control
