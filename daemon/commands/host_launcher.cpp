#include "daemon/commands/host_launcher.h"

#include "common/spec/spec_json.h"
#include "daemon/plan/plan.h"
#include "daemon/proc/node_readings.h"

#include <algorithm>
#include <unistd.h>

namespace nsa::control {

namespace {

constexpr double kMebi = 1 << 20;

// The kernel's count includes cached file pages, which it frees when memory runs short. So the
// limit stops only runaway growth, and not a run whose estimate was a little low.
wire::AttemptLimits limits_of(const spec::NodeQuotaSection& quota, const RunRecord& record) {
  constexpr double kLeastBytes = double{uint64_t{2} << 30};
  const auto ranks = static_cast<uint64_t>(record.spec.parallel.ranks);
  wire::AttemptLimits limits;
  limits.processes = static_cast<uint64_t>(quota.processes_per_rank) * ranks;
  if (quota.memory_factor <= 0) return limits;
  const nlohmann::json::json_pointer total("/memory_bytes/total");
  const double estimated =
      record.row.estimate.is_object() ? record.row.estimate.value(total, 0.0) : 0.0;
  limits.memory_bytes =
      static_cast<uint64_t>(std::max(kLeastBytes, quota.memory_factor * estimated)) * ranks;
  return limits;
}

} // namespace

uid_t uid_of(const store::RunRow& row) {
  return static_cast<uid_t>(row.uid);
}

net::Offload::Job job_of(const store::RunRow& row, const std::string& what) {
  return {"uid " + std::to_string(uid_of(row)), what + " of run " + row.id};
}

std::string HostLauncher::worker() const {
  return options_.config.programs.worker.empty() ? options_.program_folder + "/nsa-worker"
                                                 : options_.config.programs.worker;
}

std::map<std::string, std::string> HostLauncher::programs() const {
  const std::string& shim = options_.config.programs.shim;
  return {{"nsa-worker", worker()},
          {"nsa-shim", shim.empty() ? options_.program_folder + "/nsa-shim" : shim},
          {"nsad", "/proc/self/exe"}}; // the running program, even if its file was replaced
}

Result<privilege::AttemptStart> HostLauncher::prepare(const state::Run& run,
                                                      const RunRecord& record) {
  if (::access(worker().c_str(), X_OK) != 0)
    return fail(ErrorCode::kNotFound, "the trainer " + worker() + " is not there",
                "build nsa-worker, or name it in nsad.toml (programs.worker)");

  plan::AttemptInput input;
  input.run_id = run.id;
  input.attempt = run.attempt.number;
  // A crash may come between the intent and the shim. The recorded token stays in use, because a
  // shim may have it.
  input.token = run.attempt.token.empty() ? proc::random_token() : run.attempt.token;
  input.spec = record.spec;
  input.run_folder = record.folder;
  input.worker = worker();
  input.worker_arguments = options_.config.programs.worker_arguments;
  input.checkpoint_folder = run.attempt.checkpoint_folder;
  input.without_graphs = run.without_graphs;
  input.replaced_data = run.replaced_data;
  input.slots = run.attempt.slots;
  for (const std::string& slot : run.slots)
    if (std::find(input.slots.begin(), input.slots.end(), slot) == input.slots.end())
      input.spare_slots.push_back(slot);
  input.rungs = run.standing.active;
  input.rung_taken_after = run.standing.taken_after;
  if (!input.rungs.empty()) input.run_spec = record.row.spec;
  input.node_environment = options_.host->node_environment();
  input.first_step = run.attempt.first_step;
  const spec::NodeQuotaSection& quota = options_.config.quota;
  input.quotas = {quota.events_per_second, quota.steps_per_second,
                  quota.log_mib_per_second * kMebi};
  input.limits = limits_of(quota, record);
  input.restart_daemon = options_.restart_daemon;

  privilege::AttemptStart start;
  NSA_TRY_ASSIGN(start.plan, plan::make_launch_plan(input));
  start.spec = spec::to_json(record.spec).dump(1);
  start.options.program = options_.config.programs.shim;
  start.options.cgroup_root = options_.config.supervision.cgroup_root;
  return start;
}

void HostLauncher::list_gpus(Done<gpu::Gpus> done) {
  workers_.run({"", "the list of GPUs"}, [] { return gpu::list_gpus(); }, std::move(done));
}

void HostLauncher::choose_checkpoint(const RunRecord& record,
                                     std::vector<manifest::Distrust> distrusted,
                                     Done<manifest::Choice> done) {
  workers_.run(
      job_of(record.row, "the checkpoints"),
      [host = options_.host, as = uid_of(record.row), folder = record.folder,
       distrusted = std::move(distrusted)] {
        return host->choose_checkpoint(as, folder, distrusted);
      },
      std::move(done));
}

void HostLauncher::start(const RunRecord& record, privilege::AttemptStart start,
                         Done<shim::StartedShim> done) {
  const auto shared = std::make_shared<privilege::AttemptStart>(std::move(start));
  calls_.run(
      job_of(record.row, "the start"),
      [host = options_.host, as = uid_of(record.row), shared] {
        return host->start_attempt(as, std::move(*shared));
      },
      std::move(done));
}

void HostLauncher::read_started(const RunRecord& record, AttemptNumber attempt,
                                Done<shim::StartedAttempt> done) {
  calls_.run(
      job_of(record.row, "started.json"),
      [host = options_.host, as = uid_of(record.row),
       folder = plan::attempt_folder(record.folder, attempt)] {
        return host->read_started(as, folder);
      },
      std::move(done));
}

void HostLauncher::write_summary(const store::RunRow& row, const nlohmann::json& summary,
                                 std::function<void(const Status&)> done) {
  calls_.run(
      job_of(row, "the summary"),
      [host = options_.host, as = uid_of(row), folder = options_.state_folder + "/runs/" + row.id,
       summary] { return host->write_summary(as, folder, summary); },
      std::move(done));
}

} // namespace nsa::control
