#include "cli/client/interrupt.h"
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/out_file.h"
#include "cli/part_profile.h"
#include "cli/parts.h"
#include "cli/phase_recording.h"
#include "cli/render/table.h"
#include "cli/render/text.h"
#include "common/base/clock.h"
#include "common/base/file.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <set>

namespace nsa::cli {

using render::milliseconds;
using render::percent;

namespace {

namespace fs = std::filesystem;

constexpr int64_t kRecordedSteps = 50;
constexpr timespec kBetweenSamples = {0, 500'000}; // nanoseconds
constexpr int64_t kLookForRanksEvery = 1000;       // samples

struct ProfiledRank {
  Rank rank = 0;
  int64_t pid = 0;
  progress::Page page;
  PhaseRecording recording;
};

bool is_alive(int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

Error not_readable(const std::string& who, const std::error_code& error) {
  if (error == std::errc::permission_denied)
    return {ErrorCode::kPermission, "this user may not read the progress page of " + who,
            "run nsactl as the owner of the run"};
  return {ErrorCode::kNotFound, who + " does not run on this host any more",
          "see what runs: nsactl ls --state running"};
}

// Opens the memory file in which the rank publishes its position. Reading it costs the rank
// nothing.
Result<progress::Page> open_page(Rank rank, int64_t pid, AttemptNumber attempt) {
  const std::string who = "rank " + std::to_string(rank) + ", process " + std::to_string(pid);
  std::error_code error;
  fs::directory_iterator entry("/proc/" + std::to_string(pid) + "/fd", error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry->path(), gone).string();
    if (gone || target.find("memfd:nsa-progress") == std::string::npos) continue;
    UniqueFd fd(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) continue;
    auto page = progress::Page::open(std::move(fd), false);
    if (page && page->rank() == rank && page->attempt() == attempt) return std::move(*page);
  }
  if (error) return fail(not_readable(who, error));
  return fail(ErrorCode::kNotFound, who + " has no progress page",
              "see what runs: nsactl ls --state running");
}

Error no_live_rank(const wire::RunDetail& run, const Arguments& arguments) {
  return {ErrorCode::kNotFound,
          "run " + run.summary.id + " has no live rank" +
              (arguments.has("rank") ? " " + arguments.text("rank") : ""),
          "see what runs: nsactl ls --state running"};
}

// Returns the rank that records its own steps. Ranks on GPUs do so, and others if it is requested.
// If there is none, the phases of ranks are sampled.
Result<std::optional<wire::RankView>> recording_rank(const wire::RunDetail& run,
                                                     const Arguments& arguments) {
  for (const wire::RankView& rank : run.ranks) {
    if (arguments.has("rank") && arguments.integer("rank", 0) != rank.rank) continue;
    if (rank.state != wire::RankStatus::kRunning) continue;
    const bool is_on_gpu = !rank.gpu_uuid.empty();
    if (is_on_gpu || arguments.has("parts")) return std::optional(rank);
    return std::optional<wire::RankView>();
  }
  return fail(no_live_rank(run, arguments));
}

// Opens one rank, or all live ranks.
Result<std::vector<ProfiledRank>> open_ranks(const wire::RunDetail& run, const Arguments& arguments,
                                             uint64_t steps) {
  const wire::RunSummary& summary = run.summary;
  std::vector<ProfiledRank> ranks;
  for (const wire::RankView& rank : run.ranks) {
    if (arguments.has("rank") && arguments.integer("rank", 0) != rank.rank) continue;
    if (rank.state != wire::RankStatus::kRunning) continue;
    NSA_TRY_ASSIGN(auto page, open_page(rank.rank, rank.pid, summary.attempt));
    ranks.push_back({rank.rank, rank.pid, std::move(page), PhaseRecording(steps)});
  }
  if (ranks.empty()) return fail(no_live_rank(run, arguments));
  return ranks;
}

enum class RecordEnd { kFull, kInterrupted, kRankEnded };

RecordEnd record(std::vector<ProfiledRank>& ranks) {
  const client::Interrupt interrupt;
  pollfd ready = {interrupt.fd(), POLLIN, 0};
  for (int64_t sample = 0;; ++sample) {
    const int64_t now = MonotonicTime::now().nanoseconds;
    for (ProfiledRank& rank : ranks)
      if (const auto host = rank.page.read_host()) rank.recording.add(*host, now);
    if (std::all_of(ranks.begin(), ranks.end(),
                    [](const ProfiledRank& rank) { return rank.recording.is_full(); }))
      return RecordEnd::kFull;
    const bool look = sample % kLookForRanksEvery == 0;
    if (look && !std::all_of(ranks.begin(), ranks.end(),
                             [](const ProfiledRank& rank) { return is_alive(rank.pid); }))
      return RecordEnd::kRankEnded;
    if (::ppoll(&ready, 1, &kBetweenSamples, nullptr) > 0) return RecordEnd::kInterrupted;
  }
}

struct Attributed {
  std::string phase;
  // `seconds` is the time in one step.
  double ratio = 0, seconds = 0, least_ratio = 0, most_ratio = 0;
};

// Sums over all ranks. The phases with the most time come first.
std::vector<Attributed> attribute(const std::map<Rank, PhaseTimes>& ranks) {
  std::set<progress::Phase> phases;
  double total = 0, steps = 0;
  for (const auto& [rank, times] : ranks) {
    total += static_cast<double>(times.total_ns());
    steps += static_cast<double>(times.steps);
    for (const auto& [phase, ns] : times.ns)
      phases.insert(phase);
  }
  std::vector<Attributed> rows;
  for (const progress::Phase phase : phases) {
    Attributed& row = rows.emplace_back();
    row.phase = progress::phase_name(phase);
    row.least_ratio = 1;
    double sum = 0;
    for (const auto& [rank, times] : ranks) {
      const auto found = times.ns.find(phase);
      const double ns = found == times.ns.end() ? 0 : static_cast<double>(found->second);
      const double ratio = ns / static_cast<double>(times.total_ns());
      sum += ns;
      row.least_ratio = std::min(row.least_ratio, ratio);
      row.most_ratio = std::max(row.most_ratio, ratio);
    }
    row.ratio = sum / total;
    row.seconds = sum / steps * 1e-9;
  }
  std::sort(rows.begin(), rows.end(), [](const Attributed& a, const Attributed& b) {
    return a.ratio != b.ratio ? a.ratio > b.ratio : a.phase < b.phase;
  });
  return rows;
}

nlohmann::json json_of(const std::string& run, const std::string& out,
                       const std::map<Rank, PhaseTimes>& ranks) {
  nlohmann::json phases = nlohmann::json::array(), each = nlohmann::json::array();
  for (const Attributed& row : attribute(ranks))
    phases.push_back({{"phase", row.phase},
                      {"ratio", row.ratio},
                      {"step_seconds", row.seconds},
                      {"least_ratio", row.least_ratio},
                      {"most_ratio", row.most_ratio}});
  for (const auto& [rank, times] : ranks)
    each.push_back({{"rank", rank},
                    {"steps", times.steps},
                    {"first_step", times.seen_steps.front().step},
                    {"seconds", static_cast<double>(times.total_ns()) * 1e-9},
                    {"attributed_ratio", static_cast<double>(times.attributed_ns()) /
                                             static_cast<double>(times.total_ns())}});
  return {{"run", run}, {"out", out}, {"phases", std::move(phases)}, {"ranks", std::move(each)}};
}

std::string table_of(const std::map<Rank, PhaseTimes>& ranks, const Context& context) {
  double total = 0, attributed = 0, steps = 0;
  for (const auto& [rank, times] : ranks) {
    total += static_cast<double>(times.total_ns());
    attributed += static_cast<double>(times.attributed_ns());
    steps += static_cast<double>(times.steps);
  }
  render::Table table({"PHASE", "SHARE", "A STEP", "LEAST", "MOST"});
  for (const size_t column : {1, 2, 3, 4})
    table.right(column);
  for (const Attributed& row : attribute(ranks))
    table.add({row.phase, percent(row.ratio), milliseconds(row.seconds, 2),
               percent(row.least_ratio), percent(row.most_ratio)});
  table.add({"(not seen)", percent(1 - attributed / total),
             milliseconds((total - attributed) / steps * 1e-9, 2), "", ""});
  return table.print(context.io.width, context.io.unicode) +
         std::to_string(ranks.begin()->second.steps) + " steps of " + std::to_string(ranks.size()) +
         (ranks.size() == 1 ? " rank, " : " ranks, ") + milliseconds(total / steps * 1e-9, 2) +
         " each\n";
}

Result<Exit> run_profile(const Arguments& arguments, Context& context) {
  const int64_t steps = arguments.integer("steps", kRecordedSteps);
  if (steps < 1)
    return fail(ErrorCode::kInvalidArgument, "--steps is at least 1",
                "leave it out: " + std::to_string(kRecordedSteps) + " are recorded then");
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(arguments.text("RUN"))));
  NSA_TRY_ASSIGN(const auto run, client::read_as<wire::RunDetail>(answer));
  const std::string& id = run.summary.id;
  if (run.summary.state != wire::RunState::kRunning)
    return fail(ErrorCode::kConflict,
                "run " + id + " is " + run.summary.state.text() +
                    ": only a run that trains can be profiled",
                "what its steps took: nsactl export " + id + " --format csv");
  const std::string out = arguments.text("out", "profile-" + id + ".json");
  NSA_TRY_ASSIGN(const auto recording, recording_rank(run, arguments));
  if (recording) return profile_by_parts(daemon, run, {*recording, steps, out}, context);
  NSA_TRY_ASSIGN(auto ranks, open_ranks(run, arguments, static_cast<uint64_t>(steps)));
  if (!context.quiet)
    context.io.err << "recording " << steps << " steps; Ctrl-C ends earlier and keeps what there is"
                   << std::endl;
  const RecordEnd end = record(ranks);
  std::map<Rank, PhaseTimes> recorded;
  for (const ProfiledRank& rank : ranks)
    if (auto times = rank.recording.times()) recorded.emplace(rank.rank, std::move(*times));
  if (recorded.empty())
    return fail(ErrorCode::kConflict,
                end == RecordEnd::kRankEnded ? "a rank ended before it had made one whole step"
                                             : "no rank made a whole step meanwhile",
                "what happened: nsactl events " + id);
  if (end == RecordEnd::kRankEnded)
    context.io.err << "note: a rank ended meanwhile; only complete steps before that are shown\n";
  NSA_TRY(write_out(out, chrome_trace(id, recorded).dump() + "\n"));
  if (context.output == Output::kJson) {
    context.io.out << json_text(json_of(id, out, recorded)) << "\n";
    return Exit::kDone;
  }
  context.io.out << table_of(recorded, context);
  hint(context, {"open " + out + " in https://ui.perfetto.dev or chrome://tracing"});
  return Exit::kDone;
}

} // namespace

Verb profile_verb() {
  Verb verb;
  verb.name = "profile";
  verb.summary = "Record where the time of a live run's steps goes, as a Chrome trace and a table";
  verb.detail =
      "Ranks on CPUs: reads their progress pages 2,000 times a second, without work for them. "
      "Phase "
      "boundaries are exact. A phase too short to sample appears as (not seen). SHARE is of the "
      "time of whole steps, LEAST and MOST of one rank. A rank on a GPU records its own steps: it "
      "waits 10, warms up 10, then records kernels, copies and calls. Each kernel counts for the "
      "part of the step that launched it. IDLE is time in which the GPU waited for that part.";
  verb.positionals = {run_argument()};
  verb.options = {
      {"rank", 0, ValueType::kInteger, "RANK", "only this rank (default: all; on GPUs the first)"},
      {"steps", 0, ValueType::kInteger, "N", "whole steps to record (default: 50)"},
      {"out", 0, ValueType::kPath, "FILE", "the trace (default: profile-ID.json)"},
      {"parts", 0, ValueType::kFlag, "", "record parts of a step on a CPU too"}};
  verb.examples = {
      {"nsactl profile @last", "where does a step's time go?"},
      {"nsactl profile k3fm2 --rank 1 --steps 200 --out rank1.json", "one rank, longer"},
      {"nsactl profile @last --parts", "parts of the model, recorded by rank 0 itself"}};
  verb.run = run_profile;
  return verb;
}

} // namespace nsa::cli
