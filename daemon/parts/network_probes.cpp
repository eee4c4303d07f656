#include "daemon/parts/network_probes.h"

#include "common/base/log.h"
#include "common/base/tcp.h"
#include "common/wire/messages.h"
#include "daemon/parts/meeting.h"
#include "daemon/proc/node_readings.h"

namespace nsa::parts {

namespace {
const control::AttemptKey kNoAttempt; // the calls are about no attempt
}

struct NetworkProbes::Probe {
  wire::NetworkProbe view;
  std::string nodes[2]; // nodes of rank 0 and rank 1
  std::string gpus[2];  // their GPUs; empty: on CPUs
  std::string interface;
  std::string secret = proc::random_token();
  // The store's listening socket, if rank 0 is on this node.
  std::shared_ptr<UniqueFd> store = std::make_shared<UniqueFd>();
  int waiting = 2;
  std::optional<Error> failed; // the first failure
};

// Chooses GPUs only if both nodes have a free one.
void NetworkProbes::choose_gpus(Probe& probe) {
  for (Rank rank = 0; rank < 2; ++rank)
    if (rank == 0 || !probe.gpus[0].empty())
      probe.gpus[rank] = options_.take_gpu(probe.nodes[rank]);
  if (probe.gpus[1].empty()) probe.gpus[0].clear();
}

Result<wire::NetworkProbe> NetworkProbes::start(const std::string& node,
                                                const wire::NetworkProbeRequest& wanted) {
  const std::string& with = wanted.with;
  if (running_) {
    const wire::NetworkProbe& view = running_->view;
    if (view.node == node && view.with == with) return view;
    return fail(ErrorCode::kConflict,
                "the network between " + view.node + " and " + view.with + " is being measured",
                "try again in some seconds");
  }
  const auto probe = std::make_shared<Probe>();
  probe->view.node = node;
  probe->view.with = with;
  probe->view.state = wire::WorkState::kRunning;
  // This node, if it takes part, becomes rank 0: every node that reaches the head reaches rank 0's
  // port.
  const bool swapped = with == options_.node;
  probe->nodes[0] = swapped ? with : node;
  probe->nodes[1] = swapped ? node : with;
  probe->interface = wanted.interface;
  if (options_.take_gpu && !wanted.cpu) choose_gpus(*probe);
  running_ = probe;
  options_.hold_back("nsactl node probe measures the network between " + node + " and " + with);
  bind(probe);
  return probe->view;
}

Result<wire::NetworkProbe> NetworkProbes::last(const std::string& node) const {
  if (running_ && running_->view.node == node) return running_->view;
  const auto found = ended_.find(node);
  if (found != ended_.end()) return found->second;
  return fail(ErrorCode::kNotFound, "no network was measured from node " + node,
              "nsactl node probe " + node);
}

// The node of rank 0 reports the port of its store.
void NetworkProbes::bind(const Shared& probe) {
  const auto give_up = [this, probe](Error why) {
    probe->failed = std::move(why);
    end(probe);
  };
  if (probe->nodes[0] != options_.node)
    return nodes_.call(probe->nodes[0], CallKind::kBind, kNoAttempt, nullptr,
                       [this, probe, give_up](Result<nlohmann::json> answer) {
                         if (!answer) return give_up(std::move(answer).error());
                         const auto bound = wire::body_as<Prepared>(*answer);
                         if (!bound) return give_up(bound.error());
                         run(probe, bound->port);
                       });
  auto listener = listen_tcp(0);
  if (!listener) return give_up(std::move(listener).error());
  const auto port = port_of(listener->get());
  if (!port) return give_up(port.error());
  *probe->store = std::move(*listener);
  run(probe, *port);
}

void NetworkProbes::run(const Shared& probe, uint16_t port) {
  const std::string first =
      probe->nodes[0] == options_.node ? "" : options_.address_of(probe->nodes[0]);
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::string& node = probe->nodes[rank];
    const ProbeOrder order{rank, rank == 0 ? meeting_at_home(port) : meeting_elsewhere(first, port),
                           probe->secret, probe->gpus[rank], probe->interface};
    const auto done = [this, probe, rank](Result<wire::NetworkFigures> figures) {
      take(probe, rank, std::move(figures));
    };
    if (node == options_.node)
      workers_.run(
          {"", "a probe of the network"},
          [run_end = options_.run_end, order, store = probe->store] {
            return run_end(order, *store);
          },
          done);
    else
      nodes_.call(node, CallKind::kProbe, kNoAttempt, order,
                  [done](const Result<nlohmann::json>& answer) {
                    done(answer ? wire::body_as<wire::NetworkFigures>(*answer)
                                : Result<wire::NetworkFigures>(fail(answer.error())));
                  });
  }
}

void NetworkProbes::take(const Shared& probe, Rank rank, Result<wire::NetworkFigures> figures) {
  if (figures) {
    if (rank == 0) probe->view.figures = *figures;
    probe->view.figures.by =
        probe->gpus[0].empty() ? wire::MeasuredBy::kTcp : wire::MeasuredBy::kNccl;
  } else if (!probe->failed) {
    Error why = std::move(figures).error();
    if (probe->nodes[rank] == options_.node) // errors of calls already name the other nodes
      why = std::move(why).within("node " + options_.node);
    if (why.next.empty())
      why.next = probe->gpus[0].empty()
                     ? "every TCP port must be open between the nodes: docs/several-nodes.md"
                     : "nsactl node probe --cpu measures without GPUs; docs/runbook-network.md";
    probe->failed = std::move(why);
  }
  if (--probe->waiting == 0) end(probe);
}

void NetworkProbes::end(const Shared& probe) {
  running_.reset();
  if (options_.give_back) options_.give_back();
  options_.hold_back("");
  wire::NetworkProbe& view = probe->view;
  view.state = probe->failed ? wire::WorkState::kFailed : wire::WorkState::kDone;
  view.measured_at = WallTime::now().nanoseconds;
  if (probe->failed) {
    view.figures = {};
    view.problem = probe->failed->what;
    view.next = probe->failed->next;
    log::warning("parts", "the network between two nodes was not measured",
                 {{"node", view.node}, {"with", view.with}, {"why", view.problem}});
  } else {
    options_.measured(view);
  }
  ended_[view.node] = view;
}

} // namespace nsa::parts
