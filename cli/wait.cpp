#include "cli/connect.h"
#include "cli/ending.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/text.h"
#include "cli/watch.h"

#include <charconv>

namespace nsa::cli {

namespace {

// What to wait for: an end, a state, or a step.
struct Goal {
  std::optional<wire::RunState> state; // empty means any end
  uint64_t step = 0;                   // 0 means no step
};

Result<Goal> parse_goal(const std::string& text) {
  Goal goal;
  if (text.empty() || text == "end") return goal;
  if (text.rfind("step=", 0) == 0) {
    const char* from = text.data() + 5;
    const auto [end, error] = std::from_chars(from, text.data() + text.size(), goal.step);
    if (error == std::errc{} && end == text.data() + text.size() && goal.step > 0) return goal;
  } else if (const auto state = choice_from<wire::RunState>(text);
             state == wire::RunState::kRunning || (state && has_ended(*state))) {
    goal.state = state;
    return goal;
  }
  return fail(ErrorCode::kInvalidArgument, "--for does not take '" + text + "'",
              "write end, running, completed, stopped, failed, cancelled, paused or step=N");
}

// Explains a failure to a person, beside the line for programs.
Status explain_failure(Context& context, client::Daemon& daemon, const wire::RunSummary& run) {
  if (run.state != wire::RunState::kFailed || context.output == Output::kJson) return {};
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(run.id)));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  NSA_TRY_ASSIGN(const auto failure, find_failure(daemon, detail));
  context.io.err << render::failure_text(failure, {false, context.io.unicode});
  return {};
}

Result<Exit> run_wait(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const Goal goal, parse_goal(arguments.text("for")));
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const std::string run = arguments.text("RUN");
  const double limit = arguments.seconds("timeout", 0);
  const MonotonicTime deadline = MonotonicTime::now() + from_seconds(limit);
  bool reached = false;
  wire::RunSummary last;
  Watcher watcher;
  watcher.note = [&](const std::string& text) { context.io.err << text << "\n"; };
  watcher.tick = [&] { return limit == 0 || MonotonicTime::now() < deadline; };
  watcher.line = [&](const wire::FollowLine& line) {
    if (!line.summary.id.empty()) last = line.summary;
    const bool state = goal.state && last.state == *goal.state;
    const bool step = goal.step > 0 && last.step >= goal.step;
    reached = state || step;
    return !reached && watcher.tick();
  };
  NSA_TRY_ASSIGN(const WatchEnd end, watch_run(context, daemon, run, watcher));
  if (end == WatchEnd::kInterrupted) return Exit::kInterrupted;
  if (context.output == Output::kJson)
    context.io.out << json_text(nlohmann::json(last)) << "\n";
  else
    context.io.out << last.id << "  " << last.state
                   << (last.reason.empty() ? "" : ": " + last.reason) << "\n";
  if (reached) return Exit::kDone;
  if (end == WatchEnd::kEnough) {
    context.io.err << "still " << last.state << " after " << arguments.text("timeout") << "\n";
    return Exit::kStillPending;
  }
  NSA_TRY(explain_failure(context, daemon, last));
  // The run ended differently, so the goal can no longer be reached.
  if (goal.state || goal.step > 0) return Exit::kFailed;
  return exit_of_end(last);
}

} // namespace

Verb wait_verb() {
  Verb verb;
  verb.name = "wait";
  verb.summary = "Wait until a run ends, or reaches a state or step";
  verb.detail = "The exit code is the run's; 8 when --timeout ends first.";
  verb.positionals = {run_argument()};
  verb.options = {
      {"for", 0, ValueType::kText, "WHAT", "end (default), running, completed, ..., or step=N"},
      {"timeout", 0, ValueType::kDuration, "TIME", "give up after 90s, 10m, 2h"}};
  verb.examples = {{"nsactl wait @last && echo done", "act on its end"},
                   {"nsactl wait k3fm2 --for step=1000 --timeout 10m", "or give up"}};
  verb.run = run_wait;
  return verb;
}

} // namespace nsa::cli
