#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"

namespace nsa::cli {

namespace {

Result<Exit> run_status(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const std::string run = arguments.text("RUN", "@last");
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(run)));
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  context.io.out << render::run_page(detail, WallTime::now(), view_options(context));
  return Exit::kDone;
}

} // namespace

Verb status_verb() {
  Verb verb;
  verb.name = "status";
  verb.summary = "Show a run: its ranks, hangs, checkpoints and last events";
  verb.positionals = {run_argument()};
  verb.positionals[0].required = false;
  verb.positionals[0].meaning += " (default: @last)";
  verb.examples = {{"nsactl status", "the newest run"},
                   {"nsactl status k3fm2 -o wide", "with attempts, toggles and memory"},
                   {"nsactl status k3fm2 -o json", "everything"}};
  verb.run = run_status;
  return verb;
}

} // namespace nsa::cli
