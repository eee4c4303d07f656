// Measures the network between two nodes with the collectives of training: those of GPUs where both
// nodes have a free one, else those of CPUs. There is one end of a probe on each (probe_end.h), and
// one measurement at a time, since two would disturb each other. What is under way is not stored;
// after a restart of nsad it is measured anew.
//
// All on the loop's thread; this node's own end runs on `workers`. It stops by being destroyed: the
// ends on nodes end by themselves.
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
    std::string node; // this one
    std::function<std::string(const std::string& node)> address_of;
    // No run starts meanwhile: it would be measured, too, and slowed down. Empty: they may again.
    std::function<void(const std::string& why)> hold_back;
    std::function<void(const wire::NetworkProbe&)> measured;
    // A GPU of the node that nobody computes on, by its UUID; empty: there is none. One of this
    // node is the probe's until all are given back.
    std::function<std::string(const std::string& node)> take_gpu = {};
    std::function<void()> give_back = {};
    // This node's end. Blocking; tests have one of their own.
    std::function<Result<wire::NetworkFigures>(const ProbeOrder&, const UniqueFd& store)> run_end;
  };
  NetworkProbes(RemoteNodes& nodes, net::Offload& workers, Options options)
      : nodes_(nodes), workers_(workers), options_(std::move(options)) {}

  // Under way when this returns. Once more with the same nodes: how it is. kConflict: another one
  // is under way.
  Result<wire::NetworkProbe> start(const std::string& node,
                                   const wire::NetworkProbeRequest& wanted);
  // Of the newest that was asked for under this name. kNotFound: none since nsad was started.
  Result<wire::NetworkProbe> last(const std::string& node) const;

private:
  struct Probe; // one, from the first question to the last answer
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
