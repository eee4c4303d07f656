// How a run that nsactl watches ended: why it failed, with its evidence, its cost beside the
// estimate, and the commands that fit its end.
#pragma once

#include "cli/client/daemon.h"
#include "cli/render/run_views.h"
#include "cli/verb.h"

#include <optional>
#include <string>

namespace nsa::cli {

// Explains a failed run, from its last attempt's events, hangs and logs.
Result<render::FailureView> find_failure(client::Daemon& daemon, const wire::RunDetail& detail);

// Waits for the run's end. Returns no value after Ctrl-C.
Result<std::optional<wire::RunSummary>> watch_to_end(Context& context, client::Daemon& daemon,
                                                     const std::string& run);

// Works like watch_to_end(). After Ctrl-C it prints that the run continues.
Result<std::optional<wire::RunSummary>> wait_for_end(Context& context, client::Daemon& daemon,
                                                     const std::string& run);

// Prints the summary after the end, and what to do next. As JSON it prints the RunDetail on one
// line. Returns the run's exit code.
Result<Exit> tell_end(Context& context, client::Daemon& daemon, const std::string& run);

enum class SubmissionKind { kNew, kResume };

// Prints nsad's answer to `submit` and `resume`: what was done, warnings and hints. Then it carries
// out --follow or --wait. Events up to `after` are not shown.
Result<Exit> tell_submission(Context& context, client::Daemon& daemon, const Arguments& arguments,
                             const nlohmann::json& answer, SubmissionKind kind, int64_t after);

// Returns the exit code for a run's end. It is kDone if the run completed, or if it stopped without
// losing steps.
Exit exit_of_end(const wire::RunSummary& run);

} // namespace nsa::cli
