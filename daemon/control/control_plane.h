// The parts of nsad's control plane, put together: who owns what, and who calls whom.
//
//   RunRequests ─┐                        ┌─▶ CommandRunner ─▶ Launcher, ShimConnection, SlotPool
//   GpuWatch ────┼─▶ RunLoop ─▶ ledger ───┤
//   shims ───────┘      │                 └─▶ RunQueries: followers
//                       └─▶ RunMetrics: rows, summaries, samples
//
// Owns all of them, the ledger, and the ticks that drive them. All functions run on the loop's
// thread, which opens only nsad's own files; `readers_` and `workers_` read the files of submitters
// and ranks. Destroy the object to stop it. Shims and ranks continue. say_goodbye() first tells the
// shims that the stop is on purpose.
#pragma once

#include "common/net/offload.h"
#include "daemon/commands/command_runner.h"
#include "daemon/commands/gpu_watch.h"
#include "daemon/commands/host_launcher.h"
#include "daemon/commands/node_provenance.h"
#include "daemon/control/loop_delay.h"
#include "daemon/control/recovery.h"
#include "daemon/engines/jobs.h"
#include "daemon/hooks/hooks.h"
#include "daemon/nodes/cluster_nodes.h"
#include "daemon/parts/data_pushes.h"
#include "daemon/parts/network_probes.h"
#include "daemon/parts/node_gpus.h"
#include "daemon/parts/nodes_launcher.h"
#include "daemon/parts/remote_nodes.h"
#include "daemon/queries/run_queries.h"
#include "daemon/requests/run_requests.h"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace nsa::control {

struct ControlOptions {
  std::shared_ptr<privilege::Host> host;
  std::string state_folder, socket;
  spec::NodeSpec config;
  std::string program_folder;
  std::vector<std::string> restart_daemon;
  std::function<void()> shut_down; // ends the program
  MonotonicTime started;           // start of the program
  bool system_mode = false;
};

class ControlPlane {
public:
  ControlPlane(net::EventLoop& loop, store::Ledger ledger, store::Telemetry telemetry,
               ControlOptions options);

  // Rebuilds the state from the ledger and carries out what is pending. It adopts live attempts
  // first.
  Status start();
  // Releases the shims of runs that are over or being killed, because they would wait for the next
  // nsad. Runs the loop until all are released, `limit` has passed, or another stop is requested.
  void finish_ended_runs(Duration limit);
  void say_goodbye();
  // If the ledger turns out to be damaged, nsad exits without a goodbye. A shim or the service
  // manager then restarts it.
  bool ledger_damaged() const { return ledger_.damaged(); }
  // If the ledger's file was deleted or renamed, this backs up its content. nsad then exits in the
  // same way.
  bool rescue_gone_ledger();
  metrics::Snapshot snapshot(const std::map<std::string, metrics::RouteSample>& http);
  void set_metrics_address(std::string address) { metrics_address_ = std::move(address); }
  api::Queries& queries() { return queries_; }
  api::Requests& requests() { return requests_; }
  api::Nodes& nodes() { return nodes_; }

private:
  void tick(); // ten times a second
  void tick_slowly();
  void set_aside(const store::DamagedRun& damaged);
  Status load_open_runs();
  void on_xid(const std::string& slot, uint64_t number);
  void note_heard(const std::string& node);
  std::map<std::string, NodePlaces> other_nodes(const RunId& job) const;
  void hold_runs_back(const std::string& drained); // while a node is named, no new run starts
  std::unique_ptr<ShimConnection> connect_shim(ShimListener& listener, ShimConnectionOptions shim);
  bool is_wanted(const AttemptKey& key) const; // the attempt is being started
  // The run that has slots on the node; empty if none has.
  RunId run_on(const std::string& node) const;
  parts::NodesLauncher::Options launcher_options();
  std::string take_gpu_for_probe(const std::string& node);
  parts::NetworkProbes::Options probe_options();
  void note_fetched(const AttemptKey& key, const std::string& node,
                    const transfer::Received& received);
  nlohmann::json status();
  void note_unheard(const RunId& run, const std::string& what);
  // Sends a notice to the receivers that [notify] of nsad.toml names.
  void tell_people(spec::NoticeOf what, const wire::RunSummary& run, const std::string& text);

  net::EventLoop& events_;
  ControlOptions options_;
  store::Ledger ledger_;
  store::Telemetry telemetry_;
  net::Offload readers_, workers_; // short reads with a time limit; long work
  net::Offload calls_;             // calls of the host that attempts wait for
  SystemClock clock_;
  SlotPool slots_;
  parts::Offers offers_;
  parts::DataPushes pushes_;
  parts::GpusOfNodes node_gpus_;
  parts::RemoteNodes remote_nodes_; // outlives the connections that use it
  parts::NetworkProbes probes_;
  ShimConnections connections_;
  HostLauncher launcher_;
  parts::NodesLauncher nodes_launcher_;
  GpuWatch gpus_;
  NodeProvenance provenance_;
  RunLoop loop_;
  RunMetrics metrics_;
  RunQueries queries_;
  CommandRunner commands_;
  RunRequests requests_;
  GpuQuarantine quarantine_;
  ClusterNodes nodes_;
  engines::Jobs jobs_;
  hooks::Hooks hooks_;
  net::Timer tick_timer_, slow_timer_;
  int64_t ticks_ = 0;
  LoopDelay loop_delay_;
  WallTime started_at_;
  std::string metrics_address_;
};

} // namespace nsa::control
