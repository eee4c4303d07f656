#include "cli/connect.h"
#include "cli/ending.h"
#include "cli/parts.h"
#include "cli/run_file.h"

namespace nsa::cli {

namespace {

Result<Exit> run_resume(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const std::string run = arguments.text("RUN");
  // What happened before is not shown again.
  int64_t after = 0;
  if (arguments.has("follow")) {
    NSA_TRY_ASSIGN(const auto before, daemon.get(client::run_target(run)));
    NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(before));
    if (!detail.last_events.empty()) after = detail.last_events.back().sequence;
  }
  const auto answer =
      daemon.submit(client::run_target(run, "/resume"), wire::ResumeRequest{arguments.all("set")});
  if (!answer) return refused(context, answer.error());
  return tell_submission(context, daemon, arguments, *answer, "resumed", after);
}

} // namespace

Verb resume_verb() {
  Verb verb;
  verb.name = "resume";
  verb.summary = "Go on with an ended run from its newest verified checkpoint";
  verb.detail =
      "Steps, toggles, note, tags and parallel.shard_update may be changed by --set; what "
      "changed is recorded with the new attempt.";
  verb.positionals = {run_argument()};
  verb.options = {set_option(),
                  follow_option("watch until the run ends; the exit code is the run's"),
                  wait_option("as --follow, silently; then say how it ended")};
  verb.examples = {{"nsactl resume k3fm2", "as it was"},
                   {"nsactl resume k3fm2 --set train.steps=4000 --follow", "further"}};
  verb.run = run_resume;
  return verb;
}

} // namespace nsa::cli
