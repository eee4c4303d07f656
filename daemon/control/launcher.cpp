#include "daemon/control/launcher.h"

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

Result<privilege::AttemptStart>
Launcher::prepare(const state::Run& run, const RunRecord& record,
                  std::map<std::string, std::string> node_environment) const {
  if (::access(worker().c_str(), X_OK) != 0)
    return fail(ErrorCode::kNotFound, "the trainer " + worker() + " is not there",
                "build nsa-worker, or name it in nsad.toml (programs.worker)");
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
  input.node_environment = std::move(node_environment);
  input.store_port = store.second;
  input.restart_daemon = options_.restart_daemon;

  privilege::AttemptStart start;
  NSA_TRY_ASSIGN(start.plan, plan::make_launch_plan(input));
  start.spec = spec::to_json(record.spec).dump(1);
  start.store_socket = std::move(store.first);
  start.options.program = options_.config.programs.shim;
  start.options.cgroup_root = options_.config.supervision.cgroup_root;
  return start;
}

} // namespace nsa::control
