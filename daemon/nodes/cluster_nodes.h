// The nodes that this nsad knows: its own node and, on a head, the nodes that have joined. It opens
// the head if nsad.toml asks for one, and tries again while the port is taken. Each join, refusal,
// renewal and removal is recorded in the audit.
//
// All functions run on the loop's thread. Destroy the object to stop it. Nodes then call again
// until the next head answers.
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
  // References to objects that outlive this one.
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
    // Called with this node's name when it is drained, and with an empty string when it is taken
    // back.
    std::function<void(const std::string& node)> hold_back;
    std::function<std::vector<wire::GpuView>()> gpus; // GPUs of this node, from its slots
    std::function<std::vector<wire::GpuView>()> gpus_elsewhere = {}; // GPUs of the joined nodes
    // on_frame gets the frames that are not the cluster's own. on_lost gets the name of a node that
    // lost its connection or was removed.
    std::function<void(const std::string& node, const wire::Frame&)> on_frame = {};
    std::function<void(const std::string& node)> on_lost = {};
    int cpu_slots = 0; // CPU slots of this node
    // Starts the transfer of a data set to a node, and returns the state of the newest one.
    std::function<Result<wire::DataPush>(const std::string& node, const std::string& path)> push =
        {};
    std::function<Result<wire::DataPush>(const std::string& node)> pushed = {};
    // Starts a measurement of the network between two nodes, and returns its result.
    std::function<Result<wire::NetworkProbe>(const std::string& node,
                                             const wire::NetworkProbeRequest&)>
        probe = {};
    std::function<Result<wire::NetworkProbe>(const std::string& node)> probed = {};
    // Returns the run that has slots on the node.
    std::function<RunId(const std::string& node)> run_on = {};
  };

  ClusterNodes(Tools tools, Options options);
  // Call it after the ledger has stored this node.
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
  // Records that an authenticated node sent a statement that cannot be true.
  void note_refused(const std::string& node, const std::string& why);
  void note_link(const wire::NetworkProbe& measured) { links_.note(measured); }
  // Returns this node's name while it is drained, and an empty string otherwise.
  std::string own_if_drained() const { return drained_at_.nanoseconds != 0 ? options_.node : ""; }
  std::vector<wire::GpuView> gpus() override;
  Result<wire::GpuView> release_gpu(const std::string& gpu, const api::Caller& caller) override;
  Status send(const std::string& node, const wire::Frame& frame);
  // CPU slots of the nodes that are connected and not drained. With a job these are the nodes that
  // the run's job has started. Without one they are the nodes that no job has started.
  std::map<std::string, int> cpu_slots(const RunId& job = {}) const;
  WallTime joined_at(const std::string& node) const;     // 0 if the node never joined
  std::string address_of(const std::string& node) const; // address of the node's latest call
  // Returns the head's clock minus the node's, and the round-trip time of that measurement.
  std::pair<Duration, Duration> clock_of(const std::string& node) const;
  // The agents of a run's job need the head's address, and a token for each agent.
  Result<std::string> job_address();
  Result<std::string> job_token();
  // Removes a node whose job is over, so that the head refuses its certificate.
  void retire(const std::string& node);
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
  std::map<std::string, int64_t> drained_; // drained joined nodes and the time in nanoseconds
  std::string problem_;                    // why the head is not open; empty if it is
  net::Timer again_;
  double refusals_left_;
  MonotonicTime refilled_;
  uint64_t refusals_ = 0, unlisted_ = 0;
  std::unique_ptr<cluster::Head> head_;
};

} // namespace nsa::control
