#include "daemon/engines/slurm.h"

#include "common/base/text.h"
#include "daemon/proc/run_tool.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace nsa::engines {

namespace {

constexpr Duration kSlurmLimit = std::chrono::seconds(30);

// Returns the value that follows " NAME=", up to the next blank.
std::string_view field(std::string_view line, std::string_view name) {
  for (size_t at = line.find(name); at != std::string_view::npos; at = line.find(name, at + 1)) {
    const bool begins = at == 0 || line[at - 1] == ' ';
    const size_t value = at + name.size();
    if (!begins || value >= line.size() || line[value] != '=') continue;
    return line.substr(value + 1, line.find(' ', value) - value - 1);
  }
  return {};
}

template <size_t N>
bool is_one_of(std::string_view state, const std::array<std::string_view, N>& states) {
  return std::ranges::find(states, state) != states.end();
}

JobEnd end_of(std::string_view state) {
  // In these states a job has ended, or its scheduler is about to queue it again.
  static constexpr std::array<std::string_view, 3> kMaybe = {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"};
  static constexpr std::array<std::string_view, 3> kAgain = {"COMPLETED", "TIMEOUT", "DEADLINE"};
  static constexpr std::array<std::string_view, 2> kFailed = {"FAILED", "OUT_OF_MEMORY"};
  if (is_one_of(state, kMaybe)) return JobEnd::kMaybe;
  if (is_one_of(state, kAgain)) return JobEnd::kAgain;
  if (is_one_of(state, kFailed)) return JobEnd::kFailed;
  return state == "CANCELLED" ? JobEnd::kCancelled : JobEnd::kNone;
}

} // namespace

std::string slurm_name(const RunId& run, int number) {
  return "nsad-" + run + "-" + std::to_string(number);
}

std::string slurm_script(const JobRequest& request) {
  const spec::EngineSection& wishes = request.wishes;
  std::string text = "#!/bin/bash\n";
  const auto option = [&](const std::string& name, const std::string& value) {
    text += "#SBATCH --" + name + (value.empty() ? "" : "=" + value) + "\n";
  };
  option("job-name", slurm_name(request.run, request.number));
  option("nodes", std::to_string(request.nodes));
  option("ntasks-per-node", "1");
  option("cpus-per-task", std::to_string(request.ranks_per_node * std::max(1, request.threads)));
  if (request.gpus) option("gpus-per-node", std::to_string(request.ranks_per_node));
  option("requeue", "");
  option("open-mode", "append");
  option("output", "\"" + request.folder + "/slurm-%j.log\"");
  // Slurm sends SIGTERM to the tasks, which are agents. They let their ranks write a checkpoint.
  option("signal", "TERM@" + std::to_string(std::lround(std::ceil(wishes.lead_seconds))));
  if (!wishes.partition.empty()) option("partition", wishes.partition);
  if (!wishes.time.empty()) option("time", wishes.time);
  for (const std::string& more : wishes.options)
    text += "#SBATCH " + more + "\n";
  text += "# nsad wrote this for run " + request.run + ": one agent a node, which dials " +
          request.head + ".\n";
  text += "export PATH=/usr/local/bin:/usr/bin:/bin\n";
  text += "exec srun --kill-on-bad-exit=0 --wait=0 /bin/bash -c 'exec /bin/bash \"$0\" "
          "\"$SLURM_PROCID\"' " +
          quoted(agent_script_path(request)) + "\n";
  return text;
}

Result<JobState> read_slurm_job(std::string_view line) {
  JobState job;
  job.state = field(line, "JobState");
  if (job.state.empty())
    return fail(ErrorCode::kCorrupt,
                "scontrol does not say how the job is: " + std::string(line.substr(0, 200)));
  job.reason = field(line, "Reason");
  if (job.reason == "None") job.reason.clear();
  const std::string_view restarts = field(line, "Restarts");
  std::from_chars(restarts.data(), restarts.data() + restarts.size(), job.restarts);
  job.end = end_of(job.state);
  return job;
}

Result<std::string> read_slurm_id(std::string_view printed) {
  std::string id(trim(printed.substr(0, printed.find(';'))));
  if (!id.empty() && id.find_first_not_of("0123456789") == std::string::npos) return id;
  return fail(ErrorCode::kCorrupt, "sbatch printed no job's number: " + id.substr(0, 200));
}

std::string Slurm::text(const JobRequest& request) const {
  return slurm_script(request);
}

Status Slurm::check() const {
  for (const char* tool : {"sbatch", "squeue", "scontrol", "scancel"})
    if (auto found = proc::find_tool(tool); !found) return fail(std::move(found).error());
  return {};
}

Result<std::string> Slurm::allocate(const JobRequest& request) {
  // An earlier nsad may have submitted this job and ended before it stored the id.
  NSA_TRY_ASSIGN(const std::string known,
                 proc::run_tool({{"squeue", "--noheader", "--format=%i",
                                  "--name=" + slurm_name(request.run, request.number)}},
                                kSlurmLimit));
  if (const std::string first(trim(known.substr(0, known.find('\n')))); !first.empty())
    return read_slurm_id(first);
  NSA_TRY_ASSIGN(
      const std::string printed,
      proc::run_tool({{"sbatch", "--parsable"}, text(request), request.folder}, kSlurmLimit));
  return read_slurm_id(printed);
}

Result<JobState> Slurm::state(const std::string& job) {
  auto printed = proc::run_tool({{"scontrol", "--oneliner", "show", "job", job}}, kSlurmLimit);
  if (printed) return read_slurm_job(*printed);
  if (printed.error().what.find("Invalid job id") == std::string::npos)
    return fail(std::move(printed).error());
  return fail(ErrorCode::kNotFound, "Slurm knows no job " + job + " any more");
}

Status Slurm::cancel(const std::string& job) {
  auto done = proc::run_tool({{"scancel", job}}, kSlurmLimit);
  if (done || done.error().what.find("Invalid job id") != std::string::npos) return {};
  return fail(std::move(done).error());
}

} // namespace nsa::engines
