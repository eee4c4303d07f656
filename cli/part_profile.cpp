#include "cli/part_profile.h"

#include "cli/client/interrupt.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/render/table.h"
#include "cli/render/text.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/wire/step_profile.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <poll.h>
#include <unistd.h>

namespace nsa::cli {

using render::milliseconds;
using render::percent;

namespace {

namespace fs = std::filesystem;

constexpr int kBetweenLooks = 500;     // milliseconds
constexpr uint64_t kStepsToAnswer = 3; // a rank that made this many steps has looked for requests
constexpr Duration kTimeToAnswer = std::chrono::seconds(10);
constexpr size_t kMostSummaryBytes = 1 << 20;

// The request of this nsactl, and the rank's files that answer it. The destructor removes all of
// them.
class Asked {
public:
  Asked(const wire::RunDetail& run, Rank rank)
      : request_(wire::profile_request_path(run.run_folder, rank)),
        folder_(request_.parent_path()) {}
  ~Asked() {
    std::error_code error;
    for (const fs::path& path : {placed_ ? request_ : fs::path(), answer_, trace_})
      if (!path.empty()) fs::remove(path, error);
    fs::remove(folder_, error); // succeeds only if the folder is empty
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  Status place(int64_t steps) {
    wire::StepProfileRequest request;
    request.id = "nsactl-" + std::to_string(::getpid()) + "-" +
                 std::to_string(MonotonicTime::now().nanoseconds);
    request.steps = steps;
    NSA_TRY(wire::check(request));
    std::error_code error;
    if (fs::exists(request_, error))
      return fail(ErrorCode::kConflict, "another nsactl waits for a profile of this rank",
                  "wait for it; if none runs, remove " + request_.string());
    NSA_TRY(make_folder(folder_));
    answer_ = folder_ / (request.id + ".json");
    trace_ = folder_ / (request.id + ".trace.json");
    NSA_TRY(write_file_atomic(request_, nlohmann::json(request).dump() + "\n", 0644,
                              Survives::kProcessCrash));
    placed_ = true;
    return {};
  }

  bool is_taken() const {
    std::error_code error;
    return !fs::exists(request_, error);
  }
  Result<std::optional<wire::StepProfile>> answer() const {
    std::error_code error;
    if (!fs::exists(answer_, error)) return std::optional<wire::StepProfile>();
    NSA_TRY_ASSIGN(const std::string text, read_file(answer_, kMostSummaryBytes));
    NSA_TRY_ASSIGN(const nlohmann::json body, parse_json(text, answer_.string()));
    try {
      return std::optional(body.get<wire::StepProfile>());
    } catch (const nlohmann::json::exception& e) {
      return fail(ErrorCode::kCorrupt, answer_.string() + " has the wrong shape: " + reason_of(e),
                  "the ranks are of another build; restart the run with this one");
    }
  }

  // Moves the trace to `out`. Within one file system it renames the file.
  Status take_trace(const fs::path& out) {
    std::error_code error;
    fs::rename(trace_, out, error);
    if (!error) return {};
    fs::copy_file(trace_, out, fs::copy_options::overwrite_existing, error);
    if (error)
      return fail(ErrorCode::kSystem, "cannot write " + out.string() + ": " + error.message(),
                  "name a file that can be written: --out FILE");
    return {};
  }

private:
  fs::path request_, folder_, answer_, trace_;
  bool placed_ = false;
};

Error not_recorded(const wire::RunSummary& run, const std::string& why) {
  return {ErrorCode::kConflict, why, "what happened: nsactl events " + run.id};
}

// Waits for the rank's answer for as long as the rank trains.
Result<wire::StepProfile> wait_for(client::Daemon& daemon, const wire::RunDetail& run,
                                   const PartProfileRequest& request, const Asked& asked) {
  const client::Interrupt interrupt;
  pollfd ready = {interrupt.fd(), POLLIN, 0};
  const MonotonicTime begin = MonotonicTime::now();
  const std::string& id = run.summary.id;
  const std::string who = "rank " + std::to_string(request.rank.rank) + " of run " + id;
  bool has_ended = false;
  while (true) {
    NSA_TRY_ASSIGN(auto answer, asked.answer());
    if (answer) return std::move(*answer);
    if (has_ended) return fail(not_recorded(run.summary, who + " ended meanwhile"));
    NSA_TRY_ASSIGN(const auto now_text, daemon.get(client::run_target(id)));
    NSA_TRY_ASSIGN(const auto now, client::read_as<wire::RunDetail>(now_text));
    // The rank may have answered before its end, so this looks once more.
    has_ended = wire::has_ended(now.summary.state.value().value_or(wire::RunState::kRunning)) ||
                now.summary.attempt != run.summary.attempt;
    if (!asked.is_taken() && MonotonicTime::now() - begin > kTimeToAnswer &&
        now.summary.step >= run.summary.step + kStepsToAnswer)
      return fail(ErrorCode::kUnsupported, who + " does not answer: its build is older",
                  "the parts of its steps: nsactl plot " + id + " -m phase_seconds.forward");
    if (::poll(&ready, 1, kBetweenLooks) > 0)
      return fail(not_recorded(run.summary, "interrupted; the run trains on"));
  }
}

std::string count(double launches) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", launches);
  return text;
}

// Returns how much longer a recorded step is than an earlier one, as a ratio.
double cost(double seconds, double before) {
  return before > 0 && seconds > 0 ? seconds / before - 1 : 0;
}

std::string table_of(const wire::StepProfile& profile, const Context& context) {
  render::Table table({"PART", "SHARE", "A STEP", "IDLE", "LAUNCHES"});
  for (const size_t column : {1, 2, 3, 4})
    table.right(column);
  for (const wire::StepProfilePart& part : profile.parts)
    table.add({part.part, percent(part.seconds / profile.step_seconds),
               milliseconds(part.seconds, 3), milliseconds(part.idle_seconds, 3),
               count(part.launches)});
  const double missing = 1 - profile.attributed_ratio;
  table.add({"(not attributed)", percent(missing), milliseconds(missing * profile.step_seconds, 3),
             "", ""});
  std::string text = table.print(context.io.width, context.io.unicode);
  text += std::to_string(profile.steps) + " steps of rank " + std::to_string(profile.rank) +
          " on " + profile.device + ", " + milliseconds(profile.step_seconds, 3) + " each; " +
          percent(profile.attributed_ratio) + " attributed\n";
  text += "a step took " + milliseconds(profile.before_step_seconds, 3) + " before, " +
          milliseconds(profile.recorded_step_seconds, 3) + " recorded (" +
          percent(cost(profile.recorded_step_seconds, profile.before_step_seconds)) + " more)";
  if (profile.after_step_seconds > 0)
    text += ", " + milliseconds(profile.after_step_seconds, 3) + " after";
  return text + "; the rank stood " + milliseconds(profile.stop_seconds, 3) + " at the end\n";
}

} // namespace

Result<Exit> profile_by_parts(client::Daemon& daemon, const wire::RunDetail& run,
                              const PartProfileRequest& request, Context& context) {
  if (run.run_folder.empty() ||
      ::access(("/proc/" + std::to_string(request.rank.pid)).c_str(), F_OK) != 0)
    return fail(ErrorCode::kNotFound,
                "rank " + std::to_string(request.rank.rank) + " of run " + run.summary.id +
                    " does not run on this host",
                "see where it runs: nsactl status " + run.summary.id);
  Asked asked(run, request.rank.rank);
  NSA_TRY(asked.place(request.steps));
  if (!context.quiet)
    context.io.err << "rank " << request.rank.rank << " waits 10 steps, warms up 10 and records "
                   << request.steps << "; Ctrl-C gives up" << std::endl;
  NSA_TRY_ASSIGN(const wire::StepProfile profile, wait_for(daemon, run, request, asked));
  if (!profile.error.empty()) return fail(not_recorded(run.summary, profile.error));
  NSA_TRY(asked.take_trace(request.out));
  if (context.output == Output::kJson) {
    nlohmann::json json = profile;
    json["run"] = run.summary.id;
    json["out"] = request.out;
    json.erase("trace");
    json.erase("error");
    context.io.out << json_text(json) << "\n";
    return Exit::kDone;
  }
  context.io.out << table_of(profile, context);
  if (profile.lost_graph_launches > 0)
    context.io.err << "note: " << profile.lost_graph_launches
                   << " replays of graphs ran other kernels than were recorded; theirs are not "
                      "attributed\n";
  hint(context, {"open " + request.out + " in https://ui.perfetto.dev or chrome://tracing"});
  return Exit::kDone;
}

} // namespace nsa::cli
