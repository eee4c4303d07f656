#include "daemon/control/launcher.h"

#include "common/base/file.h"
#include "common/spec/spec_json.h"
#include "daemon/control/node_readings.h"
#include "daemon/plan/plan.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::control {

namespace {

// The port is bound here and handed down as a descriptor, so that nobody can take it in between.
Result<std::pair<UniqueFd, int>> bind_store_socket() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("cannot make the rendezvous socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), 1024) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail_errno("cannot bind the rendezvous socket");
  return std::pair(std::move(fd), static_cast<int>(ntohs(address.sin_port)));
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

Result<PreparedAttempt> Launcher::prepare(const state::Run& run, const RunRecord& record) const {
  if (::access(worker().c_str(), X_OK) != 0)
    return fail(ErrorCode::kNotFound, "the trainer " + worker() + " is not there",
                "build nsa-worker, or name it in nsad.toml (programs.worker)");
  const std::string folder = plan::attempt_folder(record.folder, run.attempt.number);
  NSA_TRY(make_folder(folder + "/logs", 0750));
  NSA_TRY(write_file_atomic(folder + "/spec.json", spec::to_json(record.spec).dump(1), 0640));
  NSA_TRY_ASSIGN(auto store, bind_store_socket());

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
  input.passed_environment = record.row.environment;
  input.node_environment = environment_of_this_process();
  input.store_port = store.second;
  input.restart_daemon = options_.restart_daemon;
  NSA_TRY_ASSIGN(wire::LaunchPlan plan, plan::make_launch_plan(input));
  return PreparedAttempt{std::move(plan), std::move(store.first)};
}

Result<shim::StartedShim> Launcher::start(PreparedAttempt prepared) const {
  shim::StartOptions options;
  options.program = options_.config.programs.shim;
  options.cgroup_root = options_.config.supervision.cgroup_root;
  const std::string folder = prepared.plan.attempt_folder;
  auto started = shim::start_shim(prepared.plan, std::move(prepared.store_socket), options);
  if (started || started.error().code != ErrorCode::kConflict) return started;
  NSA_TRY_ASSIGN(const shim::StartedAttempt found, shim::read_started(folder));
  const proc::ProcessIdentity identity{found.boot_id, static_cast<pid_t>(found.shim_pid),
                                       found.shim_start_time_ticks};
  auto pidfd = shim::find_shim(identity);
  // Ended by now: the supervisor finds out, and reads what it left behind.
  return shim::StartedShim{identity, pidfd ? std::move(*pidfd) : UniqueFd()};
}

} // namespace nsa::control
