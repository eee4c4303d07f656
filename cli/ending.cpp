#include "cli/ending.h"

#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/watch.h"
#include "common/base/printable.h"
#include "common/base/text.h"

#include <algorithm>
#include <array>

namespace nsa::cli {

namespace {

constexpr int kLastEvents = 200; // the run's last events, which include the failure
constexpr int kLogLines = 400;

bool looks_like_an_error(const wire::LogLine& line) {
  static constexpr std::array<std::string_view, 9> kWords = {
      "error", "terminate called", "what():", "assert", "abort",
      "fault", "exception",        "fatal",   "cannot"};
  std::string lower = line.text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return lower.find(word) != std::string::npos; });
}

// Returns the first line near the end of a rank's log that reports an error. If there is none, it
// returns the last line on standard error.
std::string first_error_line(client::Daemon& daemon, const std::string& run,
                             const render::FailureView& failure) {
  std::string first, last;
  client::FollowOptions options;
  options.line = [&](const nlohmann::json& json) {
    const auto line = client::read_as<wire::LogLine>(json);
    if (!line || line->stream != wire::LogStream::kStderr) return true;
    if (first.empty() && looks_like_an_error(*line)) first = line->text;
    last = line->text;
    return true;
  };
  // A missing log is no error here.
  (void)daemon.follow(client::run_target(run, "/logs?rank=" + std::to_string(failure.rank) +
                                                  "&attempt=" + std::to_string(failure.attempt) +
                                                  "&tail=" + std::to_string(kLogLines)),
                      options);
  return first.empty() ? last : first;
}

bool is_of_gate(const wire::RunSummary& run) {
  return run.failure_class == wire::FailureClass::kGate;
}

void hint_after(Context& context, const wire::RunSummary& run, const render::FailureView& failure) {
  const std::string& id = run.id;
  if (run.state == wire::RunState::kCompleted)
    hint(context, {"nsactl status " + id + " -o wide", "nsactl ckpt ls " + id});
  else if (run.state == wire::RunState::kStopped)
    hint(context, {"nsactl resume " + id, "nsactl ckpt ls " + id});
  else if (run.state == wire::RunState::kPaused || is_of_gate(run))
    hint(context, {"nsactl gates " + id, "nsactl resume " + id});
  else if (run.state == wire::RunState::kCancelled)
    hint(context, {"nsactl resume " + id, "nsactl rm " + id});
  else
    hint(context,
         {"nsactl events " + id,
          "nsactl logs " + id + (failure.rank < 0 ? "" : " --rank " + std::to_string(failure.rank)),
          "nsactl resume " + id});
}

} // namespace

Exit exit_of_end(const wire::RunSummary& run) {
  if (run.state == wire::RunState::kPaused) return Exit::kPaused;
  if (run.state == wire::RunState::kFailed && is_of_gate(run)) return Exit::kGate;
  if (run.state == wire::RunState::kStopped && run.lost_steps > 0) return Exit::kLost;
  return run.state == wire::RunState::kCompleted || run.state == wire::RunState::kStopped
             ? Exit::kDone
             : Exit::kFailed;
}

Result<render::FailureView> find_failure(client::Daemon& daemon, const wire::RunDetail& detail) {
  render::FailureView failure;
  const wire::RunSummary& run = detail.summary;
  if (run.state != wire::RunState::kFailed) return failure;
  failure.attempt = run.attempt;
  failure.failure_class = ChoiceOrText<wire::FailureClass>("unknown");
  if (!detail.attempts.empty()) failure.failure_class = detail.attempts.back().failure_class;
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(
                                        run.id, "/events?tail=" + std::to_string(kLastEvents))));
  NSA_TRY_ASSIGN(const auto events, client::read_items<wire::EventView>(answer));
  for (const wire::EventView& event : events)
    if (event.kind == wire::EventKind::kAttemptFailed && event.attempt == run.attempt) {
      failure.rank = event.rank;
      failure.next = event.detail.value("next", "");
    }
  for (const wire::EventView& event : events) {
    const bool culprit = failure.rank < 0 || event.rank == failure.rank;
    if (event.kind != wire::EventKind::kRankError || event.attempt != run.attempt || !culprit)
      continue;
    failure.rank = event.rank;
    failure.error = event.detail.value("what", event.text);
    break;
  }
  if (failure.error.empty() && failure.rank >= 0)
    failure.error = first_error_line(daemon, run.id, failure);
  if (failure.rank >= 0)
    failure.evidence = detail.run_folder + "/attempts/" + std::to_string(failure.attempt) +
                       "/logs/rank-" + std::to_string(failure.rank) + ".log";
  if (detail.hangs.is_array())
    for (const nlohmann::json& hang : detail.hangs)
      if (hang.value("attempt", 0) == run.attempt && !hang.value("evidence_path", "").empty())
        failure.evidence = hang.value("evidence_path", "");
  return failure;
}

Result<std::optional<wire::RunSummary>> watch_to_end(Context& context, client::Daemon& daemon,
                                                     const std::string& run) {
  wire::RunSummary last;
  Watcher watcher;
  watcher.line = [&](const wire::FollowLine& line) {
    if (!line.summary.id.empty()) last = line.summary;
    return true;
  };
  watcher.note = [&](const std::string& text) { context.io.err << text << "\n"; };
  NSA_TRY_ASSIGN(const WatchEnd end, watch_run(context, daemon, run, watcher));
  if (end == WatchEnd::kInterrupted) return std::nullopt;
  return last;
}

Result<std::optional<wire::RunSummary>> wait_for_end(Context& context, client::Daemon& daemon,
                                                     const std::string& run) {
  NSA_TRY_ASSIGN(auto last, watch_to_end(context, daemon, run));
  if (!last) context.io.err << "detached; the run continues\n";
  return last;
}

Result<Exit> tell_end(Context& context, client::Daemon& daemon, const std::string& run) {
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(run)));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << std::endl;
    return exit_of_end(detail.summary);
  }
  NSA_TRY_ASSIGN(const render::FailureView failure, find_failure(daemon, detail));
  context.io.out << render::end_summary(
      detail, failure, {{context.io.colour, context.io.unicode}, context.io.width, false});
  context.io.out.flush();
  hint_after(context, detail.summary, failure);
  return exit_of_end(detail.summary);
}

Result<Exit> tell_submission(Context& context, client::Daemon& daemon, const Arguments& arguments,
                             const nlohmann::json& answer, SubmissionKind kind, int64_t after) {
  NSA_TRY_ASSIGN(const auto reply, client::read_as<wire::SubmitReply>(answer));
  for (const std::string& warning : reply.warnings)
    context.io.err << "warning: " << printable(warning) << "\n";
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << std::endl;
  } else {
    context.io.out << (kind == SubmissionKind::kNew ? "submitted " : "resumed ") << reply.id << "  "
                   << reply.name;
    if (reply.state == wire::RunState::kQueued) context.io.out << "  queued: " << reply.reason;
    context.io.out << std::endl;
    if (!reply.exactness.empty()) context.io.out << printable(reply.exactness) << std::endl;
    hint(context,
         {"nsactl status " + reply.id, "nsactl logs -f " + reply.id, "nsactl stop " + reply.id});
  }
  if (arguments.has("follow"))
    // The warnings of a submission have announced an injected fault; those of a resume have not.
    return follow_on_screen(context, daemon, reply.id, after, kind == SubmissionKind::kNew);
  if (!arguments.has("wait")) return Exit::kDone;
  NSA_TRY_ASSIGN(const auto ended, wait_for_end(context, daemon, reply.id));
  if (!ended) return Exit::kInterrupted;
  return tell_end(context, daemon, reply.id);
}

} // namespace nsa::cli
