#include "daemon/plan/plan.h"

#include "common/base/text.h"
#include "common/spec/toggles.h"

namespace nsa::plan {

namespace {

// Sets the variables of torchrun's contract, except MASTER_ADDR and MASTER_PORT. Ranks meet on a
// unix socket, because any process on the host could connect to a port.
std::map<std::string, std::string> rendezvous(const AttemptInput& input, Rank rank) {
  const std::string world = std::to_string(input.spec.parallel.ranks);
  return {{"RANK", std::to_string(rank)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"WORLD_SIZE", world},
          {"LOCAL_WORLD_SIZE", world},
          {"GROUP_RANK", "0"},
          {"GROUP_WORLD_SIZE", "1"},
          {"TORCHELASTIC_RUN_ID", input.run_id},
          {"TORCHELASTIC_RESTART_COUNT", std::to_string(input.attempt - 1)},
          {"TORCHELASTIC_MAX_RESTARTS", std::to_string(input.spec.restart.max_restarts)}};
}

std::vector<std::string> arguments(const AttemptInput& input, const wire::LaunchPlan& plan,
                                   Rank rank) {
  const std::string& folder = plan.attempt_folder;
  std::vector<std::string> list = {input.worker,
                                   "--spec",
                                   folder + "/spec.json",
                                   "--run-folder",
                                   input.run_folder,
                                   "--attempt-folder",
                                   folder,
                                   "--run-id",
                                   input.run_id,
                                   "--attempt",
                                   std::to_string(input.attempt),
                                   "--rank",
                                   std::to_string(rank),
                                   "--world-size",
                                   std::to_string(input.spec.parallel.ranks)};
  if (!plan.rendezvous.empty()) {
    list.push_back("--rendezvous");
    list.push_back(plan.rendezvous);
  }
  if (!input.checkpoint_folder.empty()) {
    list.push_back("--resume");
    list.push_back(input.checkpoint_folder);
  }
  if (!input.without_graphs.empty()) {
    list.push_back("--without-graphs");
    list.push_back(input.without_graphs);
  }
  if (!input.replaced_data.empty()) {
    list.push_back("--replaced-data");
    list.push_back(join({input.replaced_data.begin(), input.replaced_data.end()}, ","));
  }
  list.insert(list.end(), input.worker_arguments.begin(), input.worker_arguments.end());
  return list;
}

// Returns an address with a port for this run, because a node may have several runs. The port is
// below those that the kernel gives to clients. If two runs get the same port, the ranks of the
// second cannot listen, and nsad does not query them.
std::string nccl_ras_address(const RunId& run) {
  constexpr uint64_t kFirst = 12'000, kPorts = 20'000;
  uint64_t number = 0;
  for (const char letter : run)
    number = number * 31 + static_cast<unsigned char>(letter);
  return "127.0.0.1:" + std::to_string(kFirst + number % kPorts);
}

} // namespace

std::string attempt_folder(const std::string& run_folder, AttemptNumber attempt) {
  return run_folder + "/attempts/" + std::to_string(attempt);
}

std::string rank_log_path(const std::string& attempt_folder, Rank rank) {
  return attempt_folder + "/logs/rank-" + std::to_string(rank) + ".log";
}

Result<wire::LaunchPlan> make_launch_plan(const AttemptInput& input) {
  const auto ranks = static_cast<size_t>(input.spec.parallel.ranks);
  if (input.slots.size() != ranks)
    return fail(ErrorCode::kInvalidArgument, std::to_string(input.slots.size()) + " slots for " +
                                                 std::to_string(ranks) + " ranks");
  NSA_TRY_ASSIGN(const auto toggles, spec::resolve_toggles(spec::requested_toggles(input.spec)));

  std::map<std::string, std::string> shared;
  for (const std::string_view name : kNodeVariables)
    if (const auto found = input.node_environment.find(std::string(name));
        found != input.node_environment.end())
      shared.insert(*found);
  for (const auto& [name, value] : spec::toggle_environment(toggles))
    shared[name] = value;
  shared["OMP_NUM_THREADS"] = std::to_string(input.spec.train.threads);
  // Each rank sees all GPUs of the attempt on its node, so that they can access each other's
  // memory. LOCAL_RANK names the rank's own GPU. parts/nodes_launcher.h sets this for runs on
  // several nodes. A CPU run must not touch any GPU.
  shared[std::string(kVisibleDevices)] =
      input.spec.parallel.device == spec::Device::kCuda ? join(input.slots, ",") : "";

  if (input.spec.parallel.device == spec::Device::kCuda && ranks > 1 &&
      shared["NCCL_RAS_ENABLE"] == "1")
    shared.emplace("NCCL_RAS_ADDR", nccl_ras_address(input.run_id));

  wire::LaunchPlan plan;
  plan.run_id = input.run_id;
  plan.attempt = input.attempt;
  plan.token = input.token;
  plan.run_folder = input.run_folder;
  plan.attempt_folder = attempt_folder(input.run_folder, input.attempt);
  plan.passed_environment = input.spec.run.pass_environment;
  if (ranks > 1) plan.rendezvous = "unix:" + plan.attempt_folder + "/rendezvous";
  plan.quotas = input.quotas;
  plan.limits = input.limits;
  plan.slots = input.slots;
  plan.spare_slots = input.spare_slots;
  plan.run_spec = input.run_spec;
  plan.rungs = input.rungs;
  if (input.rung_taken_after) plan.rung_taken_after = *input.rung_taken_after;
  plan.first_step = input.first_step;
  plan.checkpoint_folder = input.checkpoint_folder;
  plan.restart_daemon = input.restart_daemon;
  for (Rank rank = 0; rank < static_cast<Rank>(ranks); ++rank) {
    wire::RankLaunch launch;
    launch.rank = rank;
    launch.arguments = arguments(input, plan, rank);
    launch.environment = shared;
    for (auto& [name, value] : rendezvous(input, rank))
      launch.environment[name] = value;
    launch.working_folder = input.run_folder;
    launch.log_path = rank_log_path(plan.attempt_folder, rank);
    plan.ranks.push_back(std::move(launch));
  }
  return plan;
}

} // namespace nsa::plan
