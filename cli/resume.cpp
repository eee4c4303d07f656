#include "cli/connect.h"
#include "cli/ending.h"
#include "cli/parts.h"
#include "cli/run_file.h"

namespace nsa::cli {

namespace {

// Prints nsad's warnings on a terminal and asks before anything begins.
Result<bool> confirmed(Context& context, client::Daemon& daemon, const std::string& target,
                       wire::ResumeRequest request) {
  Io& io = context.io;
  if (!io.in_is_terminal || !io.err_is_terminal || context.output == Output::kJson) return true;
  request.dry_run = true;
  const auto answer = daemon.submit(target, request);
  if (!answer) return refused(context, answer.error());
  NSA_TRY_ASSIGN(const auto judged, client::read_as<wire::SubmitReply>(*answer));
  if (judged.warnings.empty()) return true;
  for (const std::string& warning : judged.warnings)
    io.err << "warning: " << warning << "\n";
  return ask(context, "resume it all the same?");
}

Result<Exit> run_resume(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const std::string run = arguments.text("RUN");
  const std::string target = client::run_target(run, "/resume");
  wire::ResumeRequest request{arguments.all("set"), arguments.has("from-start"), false};
  if (arguments.has("from")) request.from_step = arguments.integer("from", -1);
  if (!arguments.has("yes")) {
    NSA_TRY_ASSIGN(const bool really, confirmed(context, daemon, target, request));
    if (!really) {
      context.io.err << "nothing was resumed\n";
      return Exit::kFailed;
    }
  }
  // Earlier events are not shown again.
  int64_t after = 0;
  if (arguments.has("follow")) {
    NSA_TRY_ASSIGN(const auto before, daemon.get(client::run_target(run)));
    NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(before));
    if (!detail.last_events.empty()) after = detail.last_events.back().sequence;
  }
  const auto answer = daemon.submit(target, request);
  if (!answer) return refused(context, answer.error());
  return tell_submission(context, daemon, arguments, *answer, SubmissionKind::kResume, after);
}

} // namespace

Verb resume_verb() {
  Verb verb;
  verb.name = "resume";
  verb.summary = "Continue an ended run from its newest verified checkpoint";
  verb.detail =
      "--set may change steps, learning rate and schedule, gradient clip, micro_batch, ranks, "
      "activation recompute, toggles, note, tags and supervision. It may also name another data "
      "set "
      "with the same tokenizer. The global batch stays the same: nsad computes train.accumulate, "
      "unless train.global_batch is set. One line says what is exact in this resume and what is "
      "not. --from abandons newer checkpoints permanently. A completed run needs more "
      "train.steps.";
  verb.positionals = {run_argument()};
  verb.options = {
      set_option(),
      follow_option("watch until the run ends; the exit code is the run's"),
      wait_option("wait until the run ends, then say how it ended; the exit code is the run's"),
      {"from", 0, ValueType::kInteger, "STEP", "begin at this checkpoint instead of the newest"},
      {"from-start", 0, ValueType::kFlag, "", "begin at step 0, if no checkpoint is left"},
      {"yes", 'y', ValueType::kFlag, "", "do not ask for confirmation after a warning"}};
  verb.examples = {{"nsactl resume k3fm2", "as it was"},
                   {"nsactl resume k3fm2 --set train.steps=4000 --follow", "further"},
                   {"nsactl resume k3fm2 --set train.learning_rate=1e-4", "with a lower rate"},
                   {"nsactl resume k3fm2 --set parallel.ranks=1", "on one GPU instead of two"},
                   {"nsactl resume k3fm2 --from 400", "go back to step 400"}};
  verb.run = run_resume;
  return verb;
}

} // namespace nsa::cli
