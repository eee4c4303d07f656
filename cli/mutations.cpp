// Implements `stop`, `cancel` and `checkpoint`, which differ in a path and a few words.
#include "cli/connect.h"
#include "cli/ending.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/parts.h"

#include <algorithm>

namespace nsa::cli {

namespace {

// How an action is described, and which end states count as success for --wait.
struct Action {
  std::string path, done;
  std::vector<wire::RunState> ends;
  bool keeps_all = false; // whether it includes a checkpoint of the last step
};

void tell_loss(Context& context, const wire::RunSummary& run) {
  context.io.err << "error: " << run.lost_steps << (run.lost_steps == 1 ? " step" : " steps")
                 << " of run " << run.id << " are in no checkpoint and lost\n"
                 << "  hint: nsactl events " << run.id << ", then nsactl resume " << run.id
                 << " computes them again\n";
}

Result<Exit> await_ends(Context& context, client::Daemon& daemon,
                        const std::vector<wire::RunSummary>& runs, const Action& action) {
  Exit exit = Exit::kDone;
  nlohmann::json items = nlohmann::json::array();
  for (const wire::RunSummary& run : runs) {
    NSA_TRY_ASSIGN(const auto ended, wait_for_end(context, daemon, run.id));
    if (!ended) return Exit::kInterrupted;
    items.push_back(*ended);
    if (context.output != Output::kJson)
      context.io.out << ended->id << "  " << ended->state
                     << (ended->reason.empty() ? "" : ": " + ended->reason) << std::endl;
    if (std::find(action.ends.begin(), action.ends.end(), ended->state) == action.ends.end())
      exit = std::max(exit, Exit::kFailed);
    else if (action.keeps_all && ended->lost_steps > 0)
      exit = std::max(exit, Exit::kLost);
    if (ended->lost_steps > 0 && action.keeps_all) tell_loss(context, *ended);
  }
  if (context.output == Output::kJson)
    context.io.out << json_text(nlohmann::json{{"items", items}}) << "\n";
  return exit;
}

Result<Exit> post_each(const Arguments& arguments, Context& context, const Action& action,
                       std::initializer_list<std::string> next) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const bool json = context.output == Output::kJson, wait = arguments.has("wait");
  const WallTime now = WallTime::now();
  nlohmann::json items = nlohmann::json::array();
  std::vector<wire::RunSummary> runs;
  Exit worst = Exit::kDone;
  for (const std::string& run : arguments.all("RUN")) {
    const auto answer = daemon.post(client::run_target(run, "/" + action.path));
    if (!answer) {
      tell_failure(context, answer.error(), worst);
      continue;
    }
    NSA_TRY_ASSIGN(const auto summary, client::read_as<wire::RunSummary>(*answer));
    items.push_back(*answer);
    runs.push_back(summary);
    if (json) continue;
    context.io.out << summary.id << "  ";
    if (render::is_ended(summary.state))
      context.io.out << summary.state;
    else
      context.io.out << action.done << " (" << summary.state << ")";
    if (summary.waits_until != 0)
      context.io.out << ", at the latest at " << render::clock_time({summary.waits_until}, now);
    context.io.out << std::endl;
    // The reason also holds an earlier problem, such as a rank that hangs and is only observed. The
    // stop may then take all its time.
    if (summary.waits_until != 0 && summary.reason.find("; ") != std::string::npos)
      context.io.err << "warning: " << summary.reason << "; `nsactl cancel " << summary.id
                     << "` ends it now\n";
  }
  if (runs.empty()) return worst;
  if (wait) {
    NSA_TRY_ASSIGN(const Exit ended, await_ends(context, daemon, runs, action));
    return std::max(worst, ended);
  }
  if (json) context.io.out << json_text(nlohmann::json{{"items", items}}) << "\n";
  if (!json && worst == Exit::kDone) hint(context, next);
  return worst;
}

Positional runs_argument() {
  Positional runs = run_argument();
  runs.repeated = true;
  return runs;
}

} // namespace

Verb stop_verb() {
  Verb verb;
  verb.name = "stop";
  verb.summary = "Write a checkpoint, then end a run";
  verb.detail =
      "The run ends after the present step; `resume` continues from there. Ranks that do not "
      "respond are killed after hang.checkpoint_seconds + 30 s. `cancel` does not wait.";
  verb.positionals = {runs_argument()};
  verb.options = {
      wait_option("wait until it has ended; exit code 1 if it failed, 7 if steps are lost")};
  verb.examples = {{"nsactl stop k3fm2 --wait", "and wait until it has ended"}};
  verb.run = [](const Arguments& arguments, Context& context) {
    const std::string run = arguments.text("RUN");
    return post_each(arguments, context,
                     {"stop",
                      "stopping after a checkpoint",
                      {wire::RunState::kStopped, wire::RunState::kCompleted},
                      true},
                     {"nsactl wait " + run, "nsactl cancel " + run, "nsactl resume " + run});
  };
  return verb;
}

Verb cancel_verb() {
  Verb verb;
  verb.name = "cancel";
  verb.summary = "End a run at once, without a checkpoint";
  verb.detail = "All steps since the last checkpoint are lost. A queued run only leaves the queue.";
  verb.positionals = {runs_argument()};
  verb.options = {wait_option("wait until its ranks have ended")};
  verb.examples = {{"nsactl cancel k3fm2", "kill its ranks"}};
  verb.run = [](const Arguments& arguments, Context& context) {
    const std::string run = arguments.text("RUN");
    return post_each(arguments, context,
                     {"cancel",
                      "being ended",
                      {wire::RunState::kCancelled, wire::RunState::kStopped,
                       wire::RunState::kCompleted, wire::RunState::kFailed}},
                     {"nsactl resume " + run, "nsactl rm " + run});
  };
  return verb;
}

Verb ckpt_now_verb() {
  Verb verb;
  verb.name = "ckpt now";
  verb.summary = "Write a checkpoint after the step that is being computed";
  verb.positionals = {runs_argument()};
  verb.examples = {{"nsactl ckpt now k3fm2", "before an experiment"}};
  verb.run = [](const Arguments& arguments, Context& context) {
    return post_each(arguments, context, {"checkpoint", "checkpoint requested", {}},
                     {"nsactl ckpt ls " + arguments.text("RUN")});
  };
  return verb;
}

} // namespace nsa::cli
