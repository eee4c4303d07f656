// stop, cancel and checkpoint differ in a path and a few words.
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/parts.h"

namespace nsa::cli {

namespace {

Result<Exit> post_each(const Arguments& arguments, Context& context, const std::string& action,
                       const std::string& done) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  nlohmann::json items = nlohmann::json::array();
  for (const std::string& run : arguments.all("RUN")) {
    NSA_TRY_ASSIGN(const auto answer, daemon.post(client::run_target(run, "/" + action)));
    NSA_TRY_ASSIGN(const auto summary, client::read_as<wire::RunSummary>(answer));
    items.push_back(answer);
    if (context.output != Output::kJson)
      context.io.out << summary.id << "  " << done << " (" << summary.state << ")\n";
  }
  if (context.output == Output::kJson)
    context.io.out << nlohmann::json{{"items", items}}.dump() << "\n";
  return Exit::kDone;
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
  verb.detail = "The run ends after the step that is being computed; `resume` goes on from there.";
  verb.positionals = {runs_argument()};
  verb.examples = {{"nsactl stop k3fm2 && nsactl wait k3fm2", "and wait until it has ended"}};
  verb.run = [](const Arguments& arguments, Context& context) -> Result<Exit> {
    auto done = post_each(arguments, context, "stop", "stopping after a checkpoint");
    if (done)
      hint(context,
           {"nsactl wait " + arguments.text("RUN"), "nsactl resume " + arguments.text("RUN")});
    return done;
  };
  return verb;
}

Verb cancel_verb() {
  Verb verb;
  verb.name = "cancel";
  verb.summary = "End a run at once, without a checkpoint";
  verb.detail = "What was computed since the last checkpoint is lost; a queued run just leaves the "
                "queue.";
  verb.positionals = {runs_argument()};
  verb.examples = {{"nsactl cancel k3fm2", "kill its ranks"}};
  verb.run = [](const Arguments& arguments, Context& context) -> Result<Exit> {
    auto done = post_each(arguments, context, "cancel", "cancelled");
    if (done)
      hint(context,
           {"nsactl resume " + arguments.text("RUN"), "nsactl rm " + arguments.text("RUN")});
    return done;
  };
  return verb;
}

Verb ckpt_now_verb() {
  Verb verb;
  verb.name = "ckpt now";
  verb.summary = "Write a checkpoint after the step that is being computed";
  verb.positionals = {runs_argument()};
  verb.examples = {{"nsactl ckpt now k3fm2", "before an experiment"}};
  verb.run = [](const Arguments& arguments, Context& context) -> Result<Exit> {
    auto done = post_each(arguments, context, "checkpoint", "checkpoint requested");
    if (done) hint(context, {"nsactl ckpt ls " + arguments.text("RUN")});
    return done;
  };
  return verb;
}

} // namespace nsa::cli
