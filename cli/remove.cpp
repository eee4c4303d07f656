// Implements `rm` and `prune`, which remove ended runs with their files and checkpoints.
#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/text.h"

#include <algorithm>

namespace nsa::cli {

namespace {

std::string counted(size_t count) {
  return std::to_string(count) + (count == 1 ? " run" : " runs");
}

// Shows what would be removed, and removes it after a confirmation. `rm` and `prune` share this
// rule.
Result<Exit> remove_runs(const Arguments& arguments, Context& context, client::Daemon& daemon,
                         const std::vector<wire::RunSummary>& runs) {
  const bool json = context.output == Output::kJson, dry = arguments.has("dry-run");
  const auto tell = [&](bool removed, const std::vector<wire::RunSummary>& items) {
    if (json)
      context.io.out << json_text(nlohmann::json{{"removed", removed}, {"items", items}}) << "\n";
  };
  if (runs.empty() || dry) {
    tell(false, runs);
    if (!json && !runs.empty())
      context.io.out << render::runs_table(runs, WallTime::now(), view_options(context));
    if (!json)
      context.io.err << (runs.empty() ? "nothing to remove\n"
                                      : "would remove " + counted(runs.size()) + "\n");
    return Exit::kDone;
  }
  if (!json && !arguments.has("yes"))
    context.io.out << render::runs_table(runs, WallTime::now(), view_options(context))
                   << std::flush;
  NSA_TRY_ASSIGN(const bool really,
                 confirm_removal(arguments, context,
                                 counted(runs.size()) + " with logs, evidence and checkpoints",
                                 "say --yes to do it, --dry-run to only look"));
  if (!really) return Exit::kFailed;
  Exit worst = Exit::kDone;
  std::vector<wire::RunSummary> gone;
  for (const wire::RunSummary& run : runs) {
    if (const auto removed = daemon.remove(client::run_target(run.id)); !removed) {
      tell_failure(context, removed.error(), worst);
      continue;
    }
    gone.push_back(run);
    if (!json) context.io.out << run.id << "  removed\n";
  }
  tell(!gone.empty(), gone);
  return worst;
}

// Removes all runs or none: it checks that every run has ended before it removes one.
Result<Exit> run_rm(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  std::vector<wire::RunSummary> runs;
  Exit worst = Exit::kDone;
  for (const std::string& run : arguments.all("RUN")) {
    const auto answer = daemon.get(client::run_target(run, "?unique"));
    if (!answer) {
      tell_failure(context, answer.error(), worst);
      continue;
    }
    NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(*answer));
    const std::string& id = detail.summary.id;
    if (!render::is_ended(detail.summary.state))
      tell_failure(context,
                   {ErrorCode::kConflict, "run " + id + " is " + detail.summary.state.text(),
                    "nsactl cancel " + id + " --wait"},
                   worst);
    if (std::none_of(runs.begin(), runs.end(), [&](const auto& other) { return other.id == id; }))
      runs.push_back(detail.summary);
  }
  if (worst != Exit::kDone) {
    context.io.err << "nothing was removed\n";
    return worst;
  }
  return remove_runs(arguments, context, daemon, runs);
}

Result<Exit> run_prune(const Arguments& arguments, Context& context) {
  const int64_t keep = arguments.integer("keep", 0);
  if (keep < 0)
    return fail(ErrorCode::kInvalidArgument, "--keep is at least 0, not " + std::to_string(keep),
                "nsactl prune --keep 10 --dry-run shows what would go");
  // The caller must say what is old, because without a limit every ended run would be removed.
  if (!arguments.has("older-than") && !arguments.has("keep"))
    return fail(ErrorCode::kInvalidArgument, "prune needs --older-than TIME, --keep N, or both",
                "see what would go: nsactl prune --older-than 30d --dry-run; "
                "--keep 0 means every ended run");
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get("/v1/runs?all"));
  NSA_TRY_ASSIGN(auto runs, client::read_items<wire::RunSummary>(answer));
  const WallTime now = WallTime::now();
  const double older = arguments.seconds("older-than", 0);
  std::erase_if(runs, [](const auto& run) { return !render::is_ended(run.state); });
  std::sort(runs.begin(), runs.end(),
            [](const auto& a, const auto& b) { return a.ended_at > b.ended_at; });
  runs.erase(runs.begin(), runs.begin() + std::min(static_cast<ptrdiff_t>(keep), std::ssize(runs)));
  std::erase_if(runs, [&](const wire::RunSummary& run) {
    return to_seconds(Duration(now.nanoseconds - run.ended_at)) < older;
  });
  return remove_runs(arguments, context, daemon, runs);
}

std::vector<Option> removal_options() {
  return {yes_option(), {"dry-run", 0, ValueType::kFlag, "", "only say what would be removed"}};
}

} // namespace

Verb rm_verb() {
  Verb verb;
  verb.name = "rm";
  verb.summary = "Remove ended runs with their logs, evidence and checkpoints";
  verb.positionals = {run_argument()};
  verb.positionals[0].repeated = true;
  verb.options = removal_options();
  verb.examples = {{"nsactl rm k3fm2", "asks first: this cannot be undone"},
                   {"nsactl rm -y k3fm2 7f3cx", "in a script"}};
  verb.run = run_rm;
  return verb;
}

Verb prune_verb() {
  Verb verb;
  verb.name = "prune";
  verb.summary = "Remove old ended runs";
  verb.detail =
      "At least one limit is needed: --older-than, --keep or both. With both, a run goes only when "
      "it is older and is not among the N that ended last. Runs that have not ended stay. prune "
      "shows what would go, and asks.";
  verb.options = removal_options();
  verb.options.insert(verb.options.begin(), {{"older-than", 0, ValueType::kDuration, "TIME",
                                              "remove runs that ended longer ago than 12h, 7d"},
                                             {"keep", 0, ValueType::kInteger, "N",
                                              "keep the N runs that ended last; 0: keep none"}});
  verb.examples = {{"nsactl prune --older-than 30d --dry-run", "see what would go"},
                   {"nsactl prune --keep 10 --yes", "all but the last ten"}};
  verb.run = run_prune;
  return verb;
}

} // namespace nsa::cli
