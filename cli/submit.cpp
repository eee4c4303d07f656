#include "cli/connect.h"
#include "cli/ending.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/submission.h"
#include "cli/verbs.h"
#include "common/spec/fields.h"
#include "common/spec/origin.h"

#include <algorithm>
#include <optional>

namespace nsa::cli {

namespace {

// nsad reports the mistakes in the file, so that only one program judges it.
Result<wire::SubmitRequest> make_request(const RunFile& file, const Arguments& arguments,
                                         Context& context) {
  NSA_TRY_ASSIGN(Submission made, make_submission(file, arguments.all("set"), context));
  wire::SubmitRequest& request = made.request;
  request.name = arguments.text("name");
  std::vector<std::string> tags = made.spec.run.tags;
  for (const std::string& tag : arguments.all("tag"))
    tags.push_back(tag);
  if (arguments.has("tag")) request.overrides.push_back("run.tags=" + spec::to_toml(tags));
  if (arguments.has("note")) request.overrides.push_back("run.note=" + arguments.text("note"));
  const std::pair<const char*, const char*> of_job[] = {
      {"on", "engine.name"}, {"partition", "engine.partition"}, {"time", "engine.time"}};
  for (const auto& [option, key] : of_job)
    if (arguments.has(option))
      request.overrides.push_back(std::string(key) + "=" + spec::to_toml(arguments.text(option)));
  return std::move(made.request);
}

// Parses RUN@STEP, where RUN has any form that verbs accept. RUN alone means its newest usable
// checkpoint.
Result<spec::Origin> find_origin(const std::string& text, client::Daemon& daemon) {
  const size_t at = text.rfind('@');
  const bool named = at != std::string::npos && at > 0; // "@last" has no step
  const std::string run = text.substr(0, named ? at : text.size());
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(run)));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  const RunId& id = detail.summary.id;
  if (named) {
    if (const auto origin = spec::parse_origin(id + text.substr(at))) return *origin;
    return fail(ErrorCode::kInvalidArgument,
                "--from " + text + ": \"" + text.substr(at + 1) + "\" is no step",
                "write RUN@STEP with a step that nsactl ckpt ls " + id + " shows");
  }
  std::optional<uint64_t> newest;
  for (const wire::CheckpointView& view : detail.checkpoints)
    if (view.state != wire::CheckpointState::kCorrupt &&
        view.state != wire::CheckpointState::kDeleted)
      newest = std::max(newest.value_or(0), view.step);
  if (newest) return spec::Origin{id, *newest};
  return fail(ErrorCode::kNotFound, "--from " + text + ": run " + id + " has no usable checkpoint",
              "see nsactl ckpt ls " + id);
}

Status add_origin(wire::SubmitRequest& request, const Arguments& arguments,
                  client::Daemon& daemon) {
  if (arguments.has("from")) {
    NSA_TRY_ASSIGN(const spec::Origin origin, find_origin(arguments.text("from"), daemon));
    request.overrides.push_back("origin.checkpoint=" + spec::text_of(origin));
  }
  if (arguments.has("with-optimizer")) request.overrides.emplace_back("origin.optimizer=true");
  return {};
}

Result<Exit> run_submit(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const RunFile file, read_run_file(arguments.text("FILE"), context));
  NSA_TRY_ASSIGN(wire::SubmitRequest request, make_request(file, arguments, context));
  request.dry_run = arguments.has("dry-run");
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY(add_origin(request, arguments, daemon));
  const auto answer = daemon.submit("/v1/runs", request);
  if (!answer) return refused(context, answer.error(), request.file_name, request.toml);
  if (!request.dry_run)
    return tell_submission(context, daemon, arguments, *answer, SubmissionKind::kNew, 0);
  const std::string job = answer->value("job_text", "");
  if (!job.empty()) { // the scheduler's script, to read or to pass on
    context.io.out << (context.output == Output::kJson ? json_text(*answer) : job) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const Exit shown, show_plan(file, arguments, context));
  const std::string name = answer->value("name", "");
  if (context.output != Output::kJson)
    context.io.out << "\nnsad would take " << (name.empty() ? "it" : name) << ": "
                   << answer->value("reason", "") << "; nothing was started\n";
  return shown;
}

} // namespace

Verb submit_verb() {
  Verb verb;
  verb.name = "submit";
  verb.summary = "Check a run file and start its run";
  verb.detail = "Relative paths in the file are relative to it. Ranks get no variable of this "
                "environment, except those that run.pass_environment names. --from begins a new "
                "run with the weights of another one's checkpoint. Its steps, schedule, text and "
                "optimizer start again; --with-optimizer takes the optimizer's state, too. The "
                "model's shape and the tokenizer must be the same.";
  verb.positionals = {{"FILE", ValueType::kPath, "run file (TOML); - reads standard input"}};
  verb.options = {
      follow_option("watch until the run ends; the exit code is the run's"),
      wait_option("wait until the run ends, then say how it ended; the exit code is the run's"),
      set_option(),
      {"name", 0, ValueType::kText, "NAME", "name of the run, instead of the file's name"},
      {"tag", 0, ValueType::kText, "TAG", "a further tag of the run, which `ls --tag` finds", true},
      {"note", 0, ValueType::kText, "TEXT", "note of the run, instead of the file's note"},
      {"from", 0, ValueType::kText, "RUN@STEP",
       "begin with the weights of this checkpoint; without @STEP, of the newest"},
      {"with-optimizer", 0, ValueType::kFlag, "",
       "begin with the optimizer state of that checkpoint, too"},
      {"on", 0, ValueType::kText, "ENGINE",
       "slurm or kubernetes: one job gives the run its nodes (docs/slurm.md, docs/kubernetes.md)"},
      {"partition", 0, ValueType::kText, "NAME", "of Slurm, for --on slurm"},
      {"time", 0, ValueType::kText, "LIMIT",
       "of one job, for --on slurm: minutes, HH:MM:SS or DAYS-HH"},
      {"dry-run", 0, ValueType::kFlag, "",
       "let nsad check the file, show the plan, and start nothing; with --on show the job's "
       "script"}};
  verb.examples = {{"nsactl submit run.toml --follow", "start and watch"},
                   {"nsactl submit run.toml --set train.steps=2000 --name long", "a variant"},
                   {"nsactl submit run.toml --on slurm --time 4:00:00", "on nodes of Slurm"},
                   {"nsactl submit tune.toml --from k3fm2@400", "with the weights of another run"},
                   {"sed s/1337/7/ run.toml | nsactl submit - --wait", "from a pipe"}};
  verb.run = run_submit;
  return verb;
}

} // namespace nsa::cli
