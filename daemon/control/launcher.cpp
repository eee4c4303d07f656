#include "daemon/control/launcher.h"

#include "common/spec/spec_json.h"
#include "daemon/control/node_readings.h"
#include "daemon/plan/plan.h"

#include <unistd.h>

namespace nsa::control {

namespace {

constexpr double kMebi = 1 << 20;

// Files that ranks read are counted by the kernel, too, and given back when it runs short: the
// limit is for what has gone out of hand, not for what the estimate has missed.
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

std::string Launcher::worker() const {
  return options_.config.programs.worker.empty() ? options_.program_folder + "/nsa-worker"
                                                 : options_.config.programs.worker;
}

std::map<std::string, std::string> Launcher::programs() const {
  const std::string& shim = options_.config.programs.shim;
  return {{"nsa-worker", worker()},
          {"nsa-shim", shim.empty() ? options_.program_folder + "/nsa-shim" : shim},
          {"nsad", "/proc/self/exe"}}; // what runs, also when its file was replaced since
}

Result<privilege::AttemptStart>
Launcher::prepare(const state::Run& run, const RunRecord& record,
                  std::map<std::string, std::string> node_environment) const {
  if (::access(worker().c_str(), X_OK) != 0)
    return fail(ErrorCode::kNotFound, "the trainer " + worker() + " is not there",
                "build nsa-worker, or name it in nsad.toml (programs.worker)");

  plan::AttemptInput input;
  input.run_id = run.id;
  input.attempt = run.attempt.number;
  // After a crash between the intent and the shim the recorded token stays: a shim may have it.
  input.token = run.attempt.token.empty() ? random_token() : run.attempt.token;
  input.spec = record.spec;
  input.run_folder = record.folder;
  input.worker = worker();
  input.worker_arguments = options_.config.programs.worker_arguments;
  input.checkpoint_folder = run.attempt.checkpoint_folder;
  input.without_graphs = run.without_graphs;
  input.slots = run.slots;
  input.node_environment = std::move(node_environment);
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

} // namespace nsa::control
