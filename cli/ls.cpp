#include "cli/connect.h"
#include "cli/parts.h"

#include <algorithm>

namespace nsa::cli {

namespace {

Result<Exit> run_ls(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(auto answer, daemon.get(arguments.has("all") ? "/v1/runs?all" : "/v1/runs"));
  NSA_TRY_ASSIGN(auto runs, client::read_items<wire::RunSummary>(answer));
  const auto states = arguments.all("state");
  if (!states.empty())
    std::erase_if(runs, [&](const wire::RunSummary& run) {
      return std::find(states.begin(), states.end(), run.state) == states.end();
    });
  if (context.output == Output::kJson) {
    context.io.out << nlohmann::json{{"items", runs}}.dump() << "\n";
  } else if (runs.empty()) {
    context.io.err << "no runs; start one: nsactl submit run.toml\n";
  } else {
    context.io.out << render::runs_table(runs, WallTime::now(), view_options(context));
  }
  return Exit::kDone;
}

} // namespace

Verb ls_verb() {
  Verb verb;
  verb.name = "ls";
  verb.summary = "List runs";
  verb.options = {{"all", 'a', ValueType::kFlag, "", "those that ended long ago too"},
                  {"state",
                   's',
                   ValueType::kText,
                   "STATE",
                   "only runs in this state",
                   true,
                   {"queued", "starting", "running", "restarting", "stopping", "completed",
                    "stopped", "failed", "cancelled"}}};
  verb.examples = {{"nsactl ls", "what runs, and what ended lately"},
                   {"nsactl ls -a -s failed -o wide", "every failure, with more columns"}};
  verb.run = run_ls;
  return verb;
}

} // namespace nsa::cli
