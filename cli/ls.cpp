#include "cli/connect.h"
#include "cli/parts.h"
#include "common/wire/run_row.h"

#include <algorithm>

namespace nsa::cli {

namespace {

// Programs get whole summaries, a screen the rows: they are a tenth of the bytes.
Result<std::vector<wire::RunSummary>> fetch(const Arguments& arguments, client::Daemon& daemon,
                                            bool whole) {
  const std::string all = arguments.has("all") ? "all&" : "";
  if (whole) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get("/v1/runs?" + all + "rows=false"));
    return client::read_items<wire::RunSummary>(answer);
  }
  NSA_TRY_ASSIGN(const std::string answer, daemon.get_text("/v1/runs?" + all + "rows"));
  return wire::read_rows(answer);
}

Result<Exit> run_ls(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(auto runs, fetch(arguments, daemon, context.output == Output::kJson));
  const auto states = arguments.all("state");
  if (!states.empty())
    std::erase_if(runs, [&](const wire::RunSummary& run) {
      return std::find(states.begin(), states.end(), run.state) == states.end();
    });
  const auto tags = arguments.all("tag");
  std::erase_if(runs, [&](const wire::RunSummary& run) {
    return !std::all_of(tags.begin(), tags.end(), [&](const std::string& tag) {
      return std::find(run.tags.begin(), run.tags.end(), tag) != run.tags.end();
    });
  });
  if (context.output == Output::kJson) {
    context.io.out << nlohmann::json{{"items", runs}}.dump() << "\n";
  } else if (runs.empty()) {
    const bool narrowed = !states.empty() || !tags.empty();
    context.io.err << (narrowed ? "no such runs" : "no runs; start one: nsactl submit run.toml")
                   << (narrowed && !arguments.has("all") ? "; see also those of long ago: --all"
                                                         : "")
                   << "\n";
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
                    "stopped", "failed", "cancelled"}},
                  {"tag", 't', ValueType::kText, "TAG", "only runs with this tag", true}};
  verb.examples = {{"nsactl ls", "what runs, and what ended lately"},
                   {"nsactl ls -a -s failed -o wide", "every failure, with more columns"},
                   {"nsactl ls -a --tag ablation", "all of one experiment"}};
  verb.run = run_ls;
  return verb;
}

} // namespace nsa::cli
