#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/parts.h"
#include "cli/render/problems.h"
#include "cli/run_file.h"
#include "cli/verbs.h"
#include "cli/watch.h"
#include "common/base/file.h"
#include "common/spec/parse.h"

#include <cstdlib>
#include <filesystem>
#include <iterator>

namespace nsa::cli {

namespace {

Result<wire::SubmitRequest> read_request(const Arguments& arguments, Context& context) {
  wire::SubmitRequest request;
  const std::string path = arguments.text("FILE");
  std::error_code error;
  if (path == "-") {
    request.toml.assign(std::istreambuf_iterator<char>(context.io.in), {});
    request.file_name = "<stdin>";
    request.folder = std::filesystem::current_path(error).string();
  } else {
    NSA_TRY_ASSIGN(request.toml, read_file(path, 1 << 20));
    request.file_name = path;
    request.folder = std::filesystem::absolute(path, error).parent_path().string();
  }
  request.overrides = arguments.all("set");
  request.name = arguments.text("name");
  return request;
}

// The variables of this environment that the run file passes on, and no others. Mistakes in the
// file are nsad's to report, so that there is one judge; those of the environment only we see.
Status add_environment(wire::SubmitRequest& request, Context& context) {
  const spec::Parsed parsed =
      spec::parse_run_file(request.toml, request.file_name, request.overrides);
  for (const std::string& name : parsed.spec.run.pass_environment)
    if (const char* value = std::getenv(name.c_str())) request.environment[name] = value;
  if (parsed.spec.inject.kind != "none")
    context.io.err << "INJECT: this run will make a fault on purpose: " << parsed.spec.inject.kind
                   << "\n";
  return check_environment(parsed.spec, context);
}

// `submit --dry-run` is `plan`.
Result<Exit> plan_instead(const Arguments& arguments, Context& context) {
  for (const Verb& verb : all_verbs())
    if (verb.name == "plan") return verb.run(arguments, context);
  return fail(ErrorCode::kUnsupported, "this build has no `plan`");
}

Result<Exit> run_submit(const Arguments& arguments, Context& context) {
  if (arguments.has("dry-run")) return plan_instead(arguments, context);
  NSA_TRY_ASSIGN(wire::SubmitRequest request, read_request(arguments, context));
  NSA_TRY(add_environment(request, context));
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const auto answer = daemon.submit("/v1/runs", request);
  if (!answer) {
    // The places first, so that the sentence that counts them stands last before the prompt.
    context.io.err << render::problems_text(answer.error().problems);
    return fail(answer.error().error);
  }
  NSA_TRY_ASSIGN(const auto reply, client::read_as<wire::SubmitReply>(*answer));
  for (const std::string& warning : reply.warnings)
    context.io.err << "warning: " << warning << "\n";
  if (context.output == Output::kJson) {
    context.io.out << answer->dump() << std::endl;
  } else {
    context.io.out << "submitted " << reply.id << "  " << reply.name;
    if (reply.state == "queued") context.io.out << "  queued: " << reply.reason;
    context.io.out << std::endl;
    hint(context,
         {"nsactl status " + reply.id, "nsactl logs -f " + reply.id, "nsactl stop " + reply.id});
  }
  if (arguments.has("follow")) return follow_on_screen(context, daemon, reply.id, 0);
  if (!arguments.has("wait")) return Exit::kDone;
  std::string state;
  Watcher watcher;
  watcher.line = [&](const wire::FollowLine& line) { return state = line.summary.state, true; };
  watcher.note = [&](const std::string& text) { context.io.err << text << "\n"; };
  NSA_TRY_ASSIGN(const WatchEnd end, watch_run(context, daemon, reply.id, watcher));
  return end == WatchEnd::kInterrupted ? Exit::kInterrupted : exit_of_state(state);
}

} // namespace

Verb submit_verb() {
  Verb verb;
  verb.name = "submit";
  verb.summary = "Check a run file and start its run";
  verb.detail = "Relative paths in the file are relative to it. Ranks get no variable of this "
                "environment, except those that run.pass_environment names.";
  verb.positionals = {{"FILE", ValueType::kPath, "run file (TOML); - reads standard input"}};
  verb.options = {follow_option("watch until the run ends; the exit code is the run's"),
                  {"wait", 'w', ValueType::kFlag, "", "as --follow, silently"},
                  set_option(),
                  {"name", 0, ValueType::kText, "NAME", "instead of the file's name"},
                  {"dry-run", 0, ValueType::kFlag, "", "say what would be done, as `plan`"}};
  verb.examples = {{"nsactl submit run.toml --follow", "start and watch"},
                   {"nsactl submit run.toml --set train.steps=2000 --name long", "a variant"},
                   {"sed s/1337/7/ run.toml | nsactl submit - --wait", "from a pipe"}};
  verb.run = run_submit;
  return verb;
}

} // namespace nsa::cli
