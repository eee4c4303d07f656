// The nodes that this nsad knows: its own, and those that have joined it as their head. Opens the
// head where nsad.toml asks for one, and tries again where the port is taken. Whoever joins, is
// refused, renewed or removed leaves a row in the audit.
//
// All on the loop's thread. It stops by being destroyed; nodes call again until the next head
// answers.
#pragma once

#include "common/spec/node_spec.h"
#include "daemon/api/nodes.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/nodes/gpu_quarantine.h"
#include "daemon/nodes/ledger_book.h"
#include "daemon/nodes/network_links.h"
#include "daemon/run_loop/run_loop.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace nsa::control {

class ClusterNodes final : public api::Nodes {
public:
  // What it works with; all of them outlive it.
  struct Tools {
    net::EventLoop& events;
    Clock& clock;
    RunLoop& loop;
    store::Ledger& ledger;
    GpuQuarantine& quarantine;
  };
  struct Options {
    spec::NodeClusterSection cluster;
    std::string state_folder, node;
    // Told this node's name when it is drained, and nothing when it is not any more.
    std::function<void(const std::string& node)> hold_back;
    std::function<std::vector<wire::GpuView>()> gpus; // of this node, as its slots know them
    std::function<std::vector<wire::GpuView>()> gpus_elsewhere = {}; // of those that have joined
    // Frames of nodes that are not the cluster's own, and nodes that are not heard any more.
    std::function<void(const std::string& node, const wire::Frame&)> on_frame = {};
    std::function<void(const std::string& node)> on_lost = {};
    int cpu_slots = 0; // of this node
    // Data sets on their way to nodes.
    std::function<Result<wire::DataPush>(const std::string& node, const std::string& path)> push =
        {};
    std::function<Result<wire::DataPush>(const std::string& node)> pushed = {};
    // Measurements of the network between two nodes.
    std::function<Result<wire::NetworkProbe>(const std::string& node,
                                             const wire::NetworkProbeRequest&)>
        probe = {};
    std::function<Result<wire::NetworkProbe>(const std::string& node)> probed = {};
    std::function<RunId(const std::string& node)> run_on = {}; // which has places there
  };

  ClusterNodes(Tools tools, Options options);
  // Once the ledger knows this node.
  Status start();

  std::vector<wire::NodeView> list() override;
  Result<wire::NodeToken> make_token(const api::Caller& caller) override;
  Status remove(const std::string& node, const api::Caller& caller) override;
  Status set_drained(const std::string& node, bool drained, const api::Caller& caller) override;
  Result<wire::DataPush> push_data(const std::string& node, const std::string& path,
                                   const api::Caller& caller) override;
  Result<wire::DataPush> pushed_data(const std::string& node) override;
  Result<wire::NetworkProbe> probe_network(const std::string& node,
                                           const wire::NetworkProbeRequest& wanted,
                                           const api::Caller& caller) override;
  Result<wire::NetworkProbe> probed_network(const std::string& node) override;
  // What a node with a good certificate says, and cannot be true.
  void note_refused(const std::string& node, const std::string& why);
  void note_link(const wire::NetworkProbe& measured) { links_.note(measured); }
  // This node's name while it is drained.
  std::string own_if_drained() const { return drained_at_.nanoseconds != 0 ? options_.node : ""; }
  std::vector<wire::GpuView> gpus() override;
  Result<wire::GpuView> release_gpu(const std::string& gpu, const api::Caller& caller) override;
  Status send(const std::string& node, const wire::Frame& frame);
  // Of nodes that are heard and take runs: of those that this run's job has started, or of those
  // that no job has.
  std::map<std::string, int> cpu_slots(const RunId& job = {}) const;
  WallTime joined_at(const std::string& node) const;     // 0: never
  std::string address_of(const std::string& node) const; // where it called from last
  // The head's clock minus the node's, and the round trip of that measurement.
  std::pair<Duration, Duration> clock_of(const std::string& node) const;
  // What the agents of a run's job need: the head's address, and a token for each.
  Result<std::string> job_address();
  Result<std::string> job_token();
  void retire(const std::string& node); // its job is over: its certificate is refused
  void add_samples(metrics::DaemonSample& daemon) const;

private:
  void open();
  Result<cluster::Head*> head();
  void take(const cluster::Notice& notice);
  void note_refusal(const cluster::Notice& notice);
  void note(const std::string& who, std::string_view verb, const std::string& node,
            const std::string& why);
  Status audited(const api::Caller& caller, std::string_view verb, const std::string& node,
                 Status done);
  store::AuditRow audit_row(const api::Caller& caller, std::string_view verb,
                            const std::string& node) const;
  Status drain(const std::string& node, bool drained, const api::Caller& caller);
  wire::NodeView view_of(const cluster::Node& node) const;
  wire::NodeView own_view();
  std::string address() const;

  Tools tools_;
  Options options_;
  LedgerBook book_;
  NetworkLinks links_;
  cluster::NodeHello facts_;
  WallTime drained_at_;
  std::map<std::string, int64_t> drained_; // of the others: since when
  std::string problem_;                    // why the head is not open
  net::Timer again_;
  double refusals_left_;
  MonotonicTime refilled_;
  uint64_t refusals_ = 0, unlisted_ = 0;
  std::unique_ptr<cluster::Head> head_;
};

} // namespace nsa::control
