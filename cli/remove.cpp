// rm and prune: ended runs, their files and checkpoints.
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/parts.h"
#include "cli/render/text.h"

#include <algorithm>

namespace nsa::cli {

namespace {

Result<Exit> run_rm(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  nlohmann::json items = nlohmann::json::array();
  for (const std::string& run : arguments.all("RUN")) {
    NSA_TRY_ASSIGN(const auto answer, daemon.remove(client::run_target(run)));
    items.push_back(answer);
    if (context.output != Output::kJson) context.io.out << answer.value("id", run) << "  removed\n";
  }
  if (context.output == Output::kJson)
    context.io.out << nlohmann::json{{"items", items}}.dump() << "\n";
  return Exit::kDone;
}

Result<Exit> run_prune(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get("/v1/runs?all"));
  NSA_TRY_ASSIGN(auto runs, client::read_items<wire::RunSummary>(answer));
  const WallTime now = WallTime::now();
  const double older = arguments.seconds("older-than", 0);
  std::erase_if(runs, [&](const wire::RunSummary& run) {
    return !render::is_ended(run.state) ||
           to_seconds(Duration(now.nanoseconds - run.ended_at)) < older;
  });
  std::sort(runs.begin(), runs.end(),
            [](const auto& a, const auto& b) { return a.ended_at > b.ended_at; });
  const auto keep = static_cast<size_t>(std::max<int64_t>(0, arguments.integer("keep", 0)));
  runs.erase(runs.begin(), runs.begin() + static_cast<ptrdiff_t>(std::min(keep, runs.size())));
  const bool really = arguments.has("yes");
  for (const wire::RunSummary& run : runs)
    if (really) NSA_TRY(daemon.remove(client::run_target(run.id)));
  if (context.output == Output::kJson) {
    context.io.out << nlohmann::json{{"removed", really}, {"items", runs}}.dump() << "\n";
  } else if (runs.empty()) {
    context.io.err << "nothing to remove\n";
  } else {
    context.io.out << render::runs_table(runs, now, view_options(context));
    context.io.err << (really ? "removed " : "would remove ") << runs.size()
                   << (runs.size() == 1 ? " run" : " runs") << "\n";
    if (!really) hint(context, {"the same with --yes"});
  }
  return Exit::kDone;
}

} // namespace

Verb rm_verb() {
  Verb verb;
  verb.name = "rm";
  verb.summary = "Remove ended runs with their logs, evidence and checkpoints";
  verb.positionals = {run_argument()};
  verb.positionals[0].repeated = true;
  verb.examples = {{"nsactl rm k3fm2", "this cannot be undone"}};
  verb.run = run_rm;
  return verb;
}

Verb prune_verb() {
  Verb verb;
  verb.name = "prune";
  verb.summary = "Remove old ended runs";
  verb.detail = "Without --yes it only says what would go.";
  verb.options = {{"older-than", 0, ValueType::kDuration, "TIME", "ended longer ago than 12h, 7d"},
                  {"keep", 0, ValueType::kInteger, "N", "leave the N that ended last"},
                  {"yes", 'y', ValueType::kFlag, "", "really remove them"}};
  verb.examples = {{"nsactl prune --older-than 30d", "see what would go"},
                   {"nsactl prune --keep 10 --yes", "all but the last ten"}};
  verb.run = run_prune;
  return verb;
}

} // namespace nsa::cli
