// The control plane's functions for runs on several nodes.
#include "daemon/control/control_plane.h"
#include "daemon/parts/joint_attempt.h"
#include "daemon/parts/probe_end.h"
#include "daemon/proc/node_readings.h"
#include "daemon/supervision/attempt_supervisor.h"

namespace nsa::control {

std::unique_ptr<ShimConnection> ControlPlane::connect_shim(ShimListener& listener,
                                                           ShimConnectionOptions shim) {
  Reach reach{options_.host, calls_};
  if (state::has_other_nodes(state::parts_of(shim.slots, shim.ranks)))
    return std::make_unique<parts::JointAttempt>(events_, listener, std::move(reach), remote_nodes_,
                                                 std::move(shim));
  return std::make_unique<AttemptSupervisor>(events_, listener, std::move(reach), std::move(shim));
}

// Returns whether this attempt is being started, by this nsad or an earlier one.
bool ControlPlane::is_wanted(const AttemptKey& key) const {
  const state::Run* run = loop_.find(key.run);
  return run != nullptr && run->attempt.number == key.attempt &&
         run->attempt.phase == state::AttemptPhase::kLaunching;
}

parts::NodesLauncher::Options ControlPlane::launcher_options() {
  parts::NodesLauncher::Options options;
  options.host = options_.host;
  options.orphan_seconds = options_.config.cluster.orphan_seconds;
  options.address_of = [this](const std::string& node) { return nodes_.address_of(node); };
  options.offers = &offers_;
  options.open_runs = [this] {
    std::vector<RunId> open;
    for (const auto& [id, run] : loop_.state().runs)
      open.push_back(id);
    return open;
  };
  options.is_wanted = [this](const AttemptKey& key) {
    const state::Run* run = loop_.find(key.run);
    return is_wanted(key) && !run->stop_requested && !run->cancel_requested;
  };
  options.waits = [this](const RunId& run, const std::string& text) {
    if (metrics_.find(run) != nullptr) metrics_.set_waiting(run, text); // the next tick writes it
  };
  options.fetched = [this](const AttemptKey& key, const std::string& node,
                           const transfer::Received& received) {
    note_fetched(key, node, received);
  };
  return options;
}

// Tells the runs that lost this node that it is back.
void ControlPlane::note_heard(const std::string& node) {
  std::vector<RunId> waiting;
  for (const auto& [id, run] : loop_.state().runs)
    if (run.away.count(node) != 0) waiting.push_back(id);
  for (const RunId& id : waiting)
    loop_.submit({id, 0, 0, state::NodeBack{node}});
}

std::map<std::string, NodePlaces> ControlPlane::other_nodes(const RunId& job) const {
  std::map<std::string, NodePlaces> nodes;
  for (const auto& [node, cpu_slots] : nodes_.cpu_slots(job))
    nodes[node] = {cpu_slots, node_gpus_.places(node)};
  return nodes;
}

RunId ControlPlane::run_on(const std::string& node) const {
  const std::string wanted = node == proc::host_name() ? "" : node;
  for (const auto& [id, run] : loop_.state().runs)
    if (const auto& slots = run.attempt.slots.empty() ? run.slots : run.attempt.slots;
        !slots.empty())
      for (const state::Part& part : state::parts_of(slots, run.ranks))
        if (part.node == wanted) return id;
  return {};
}

// On another node, that node's nsad leases the GPU when it receives the probe.
std::string ControlPlane::take_gpu_for_probe(const std::string& node) {
  if (node == proc::host_name()) {
    for (const gpu::Gpu& gpu : slots_.gpus().list)
      if (slots_.acquire_gpus(parts::kProbeLease, {gpu.uuid})) return gpu.uuid;
    return {};
  }
  for (const auto& [uuid, why] : node_gpus_.places(node))
    if (const std::string slot = state::slot_on(node, uuid);
        why.empty() && !slots_.is_quarantined(slot) && slots_.owner_of(slot).empty())
      return uuid;
  return {};
}

parts::NetworkProbes::Options ControlPlane::probe_options() {
  parts::NetworkProbes::Options options;
  options.node = proc::host_name();
  options.address_of = [this](const std::string& node) { return nodes_.address_of(node); };
  options.hold_back = [this](const std::string& why) {
    if (!why.empty()) return slots_.hold_back(why);
    hold_runs_back(nodes_.own_if_drained());
  };
  options.take_gpu = [this](const std::string& node) { return take_gpu_for_probe(node); };
  options.give_back = [this] { slots_.release(parts::kProbeLease); };
  options.measured = [this](const wire::NetworkProbe& probe) { nodes_.note_link(probe); };
  options.run_end = [worker = options_.config.programs.worker.empty()
                                  ? options_.program_folder + "/nsa-worker"
                                  : options_.config.programs.worker](const parts::ProbeOrder& order,
                                                                     const UniqueFd& store) {
    return parts::run_probe_end(worker, order, store);
  };
  return options;
}

void ControlPlane::note_fetched(const AttemptKey& key, const std::string& node,
                                const transfer::Received& received) {
  nlohmann::json detail = received;
  detail["node"] = node;
  loop_.note(
      store::note_row(clock_.wall().nanoseconds, key.run, key.attempt,
                      ChoiceOrText<wire::EventKind>(parts::kCheckpointFetched),
                      received.damaged > 0 ? wire::Severity::kWarning : wire::Severity::kInfo,
                      parts::fetched_text(node, received), std::move(detail)));
}

} // namespace nsa::control
