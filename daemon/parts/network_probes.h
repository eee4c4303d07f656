// Measures the network between two nodes with the collectives of training: between GPUs if both
// nodes have a free one, else between CPUs. Each node runs one end of the probe (probe_end.h). Only
// one measurement runs at a time, since two would disturb each other. A running measurement is not
// stored; a restart of nsad loses it.
//
// All calls are on the loop's thread; this node's own end runs on `workers`. To stop it, destroy
// it: the ends on nodes end by themselves.
#pragma once

#include "common/net/offload.h"
#include "common/wire/node_view.h"
#include "daemon/parts/remote_nodes.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace nsa::parts {

class NetworkProbes {
public:
  struct Options {
    std::string node; // this node
    std::function<std::string(const std::string& node)> address_of;
    // No run starts during a measurement: each would slow down the other. An empty text lets runs
    // start again.
    std::function<void(const std::string& why)> hold_back;
    std::function<void(const wire::NetworkProbe&)> measured;
    // UUID of a GPU of the node that nobody uses; empty: there is none. A GPU of this node belongs
    // to the probe until give_back().
    std::function<std::string(const std::string& node)> take_gpu = {};
    std::function<void()> give_back = {};
    // Runs this node's end. It blocks; tests replace it.
    std::function<Result<wire::NetworkFigures>(const ProbeOrder&, const UniqueFd& store)> run_end;
  };
  NetworkProbes(RemoteNodes& nodes, net::Offload& workers, Options options)
      : nodes_(nodes), workers_(workers), options_(std::move(options)) {}

  // Starts a measurement and returns while it runs. Another call with the same nodes returns its
  // state. Fails with kConflict if a different one is running.
  Result<wire::NetworkProbe> start(const std::string& node,
                                   const wire::NetworkProbeRequest& wanted);
  // The newest measurement that named this node first. Fails with kNotFound if there was none since
  // nsad was started.
  Result<wire::NetworkProbe> last(const std::string& node) const;

private:
  struct Probe; // one measurement, from the first request to the last answer
  using Shared = std::shared_ptr<Probe>;
  void choose_gpus(Probe& probe);
  void bind(const Shared& probe);
  void run(const Shared& probe, uint16_t port);
  void take(const Shared& probe, Rank rank, Result<wire::NetworkFigures> figures);
  void end(const Shared& probe);

  RemoteNodes& nodes_;
  net::Offload& workers_;
  Options options_;
  Shared running_;
  std::map<std::string, wire::NetworkProbe> ended_; // by the node that was named first
};

} // namespace nsa::parts
