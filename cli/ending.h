// How a run that is watched from here ended: why it failed, with its evidence; what it took against
// what was estimated; and the commands that fit its end.
#pragma once

#include "cli/client/daemon.h"
#include "cli/render/run_views.h"
#include "cli/verb.h"

#include <optional>
#include <string>

namespace nsa::cli {

// Of a failed run, from its last attempt's events, hangs and logs.
Result<render::FailureView> find_failure(client::Daemon& daemon, const wire::RunDetail& detail);

// Waits for the run's end. Nothing: Ctrl-C.
Result<std::optional<wire::RunSummary>> watch_to_end(Context& context, client::Daemon& daemon,
                                                     const std::string& run);

// The same; after Ctrl-C it has been said that the run goes on.
Result<std::optional<wire::RunSummary>> wait_for_end(Context& context, client::Daemon& daemon,
                                                     const std::string& run);

// After the end: the summary (as JSON: the RunDetail on one line), then what comes next. The exit
// code is the run's.
Result<Exit> tell_end(Context& context, client::Daemon& daemon, const std::string& run);

// `submit` and `resume` from nsad's answer on: what was done ("submitted"), warnings, hints, and
// --follow or --wait. Events up to `after` are not shown.
Result<Exit> tell_submission(Context& context, client::Daemon& daemon, const Arguments& arguments,
                             const nlohmann::json& answer, const std::string& done, int64_t after);

// What a run's end means for an exit code: completed is kDone, and stopped with all it computed.
Exit exit_of_end(const wire::RunSummary& run);

} // namespace nsa::cli
