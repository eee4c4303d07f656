#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/parts.h"
#include "cli/render/problems.h"
#include "cli/watch.h"

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
  if (!answer) {
    context.io.err << render::problems_text(answer.error().problems);
    return fail(answer.error().error);
  }
  NSA_TRY_ASSIGN(const auto reply, client::read_as<wire::SubmitReply>(*answer));
  for (const std::string& warning : reply.warnings)
    context.io.err << "warning: " << warning << "\n";
  if (context.output == Output::kJson) {
    context.io.out << answer->dump() << std::endl;
  } else {
    context.io.out << "resumed " << reply.id << "  " << reply.name;
    if (reply.state == "queued") context.io.out << "  queued: " << reply.reason;
    context.io.out << std::endl;
    hint(context, {"nsactl status " + reply.id, "nsactl logs -f " + reply.id});
  }
  if (!arguments.has("follow")) return Exit::kDone;
  return follow_on_screen(context, daemon, reply.id, after);
}

} // namespace

Verb resume_verb() {
  Verb verb;
  verb.name = "resume";
  verb.summary = "Go on with an ended run from its newest verified checkpoint";
  verb.detail = "Steps and toggles may be changed by --set; what changed is recorded with the new "
                "attempt.";
  verb.positionals = {run_argument()};
  verb.options = {set_option(), follow_option("watch until the run ends")};
  verb.examples = {{"nsactl resume k3fm2", "as it was"},
                   {"nsactl resume k3fm2 --set train.steps=4000 --follow", "further"}};
  verb.run = run_resume;
  return verb;
}

} // namespace nsa::cli
