#include "cli/connect.h"
#include "cli/parts.h"
#include "cli/watch.h"

namespace nsa::cli {

namespace {

constexpr size_t kEarlierEvents = 10; // shown if the run has been going for a while

Result<Exit> run_follow(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(arguments.text("RUN"))));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  const auto& last = detail.last_events;
  const int64_t after = last.size() > kEarlierEvents
                            ? last[last.size() - kEarlierEvents - 1].sequence
                        : last.empty() ? 0
                                       : last.front().sequence - 1;
  return follow_on_screen(context, daemon, detail.summary.id, after);
}

} // namespace

Verb follow_verb() {
  Verb verb;
  verb.name = "follow";
  verb.summary = "Watch a run until it ends";
  verb.detail = "Ctrl-C detaches; the run continues. The exit code is the run's.";
  verb.positionals = {run_argument()};
  verb.examples = {{"nsactl follow @last", "the newest run"},
                   {"nsactl follow k3fm2 -o json", "as JSON lines"}};
  verb.run = run_follow;
  return verb;
}

} // namespace nsa::cli
