// nsad.toml: settings of a node. Plain values with defaults; the file may be missing. Read through
// a field table, like run.toml. Pure.
#pragma once

#include "common/base/result.h"
#include "common/spec/field.h"
#include "common/spec/fields.h"
#include "common/spec/problem.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

// In resources.gpus, alone.
inline constexpr std::string_view kAllGpus = "all", kNoGpus = "none";
enum class MetricNames : uint8_t { kNone, kRuns, kAll };
constexpr auto choice_names(MetricNames) {
  return names_of("none", "runs", "all");
}

struct NodeResourcesSection {
  int64_t cpu_slots = 0; // ranks on CPU at a time; 0: one a core, at least 2
  std::vector<std::string> gpus = {std::string(kAllGpus)}; // or indices and UUIDs
  bool has_gpus() const { return gpus != std::vector<std::string>{std::string(kNoGpus)}; }
  std::vector<std::string> exclude_gpus;       // UUIDs that no run gets
  std::string gpu_locks = "/run/lock/nsa-gpu"; // shared by every nsad of the host
};

struct NodeAccessSection {
  std::string administrators; // group; empty: root alone
};

struct NodeMetricsSection {
  bool enabled = true;
  std::string address = "127.0.0.1";      // loopback only
  int64_t port = 9464;                    // 0: any free one
  std::string socket;                     // unix socket instead of address and port
  std::string token_file;                 // of a bearer token that every scrape must carry
  MetricNames names = MetricNames::kNone; // what nsa_run_info says of runs and users
};

struct NodeStorageSection {
  int64_t reserve_mib = 64; // disk space set aside for stopping and restarting
};

struct NodeProgramsSection { // empty: beside nsad
  std::string worker, shim;
  std::vector<std::string> worker_arguments; // appended to every rank's command line; for tests
};

// What one rank may take; a minute's worth of a rate may come at once. 0: no limit.
struct NodeQuotaSection {
  double events_per_second = 10, steps_per_second = 100;
  double log_mib_per_second = 4;
  int64_t processes_per_rank = 1024; // threads included; needs a writable cgroup, as memory does
  double memory_factor = 4;          // times what `nsactl plan` says; never below 2 GiB a rank
};

struct NodeSupervisionSection {
  std::string cgroup_root;    // cgroup v2 folder for attempts; empty: nsad's own; "none"
  bool restart_daemon = true; // user mode: shims start nsad again after a crash
};

struct NodeNotifySection { // whom to tell of runs
  std::vector<std::string> command;
  std::string webhook;
  std::vector<std::string> of = {"end", "hang"};
  double timeout_seconds = 30;
};

struct NodeSystemSection {   // of `nsad --system`
  std::string user = "nsad"; // whom nsad becomes
  std::string group = "nsa"; // whose members may submit runs
  int64_t minimum_uid = 1000;
};

struct NodeClusterSection { // of a head, whom other nodes may join
  std::string address;      // to listen on; empty: no node may join
  std::string advertise;    // by which name nodes reach this head; empty: the host's
  int64_t port = 9465;      // 0: any free one
  std::string folder;       // of the authority's key and certificate; empty: in the state folder
  int64_t certificate_days = 30; // how long a node's certificate is good
  double orphan_seconds = 120;   // until ranks end themselves that the head does not reach
};

struct NodeKubernetesSection { // of runs that are submitted with --on kubernetes
  std::string image;           // that agents run
  std::string space;           // namespace of their jobs; empty: kubectl's own
  std::string claim;           // volume of the runs
};

struct NodeSpec {
  int64_t schema = 1;
  NodeResourcesSection resources;
  NodeAccessSection access;
  NodeMetricsSection metrics;
  NodeStorageSection storage;
  NodeProgramsSection programs;
  NodeQuotaSection quota;
  NodeSupervisionSection supervision;
  NodeNotifySection notify;
  NodeSystemSection system;
  NodeClusterSection cluster;
  NodeKubernetesSection kubernetes;
};

FieldTable node_fields(NodeSpec& spec);
const std::vector<TableMeaning>& node_tables();

struct ParsedNode {
  NodeSpec spec; // usable only when problems is empty
  std::vector<Problem> problems;
  std::vector<std::string> old_names; // that were taken: each, and what to write instead
};

// An empty text gives the defaults.
ParsedNode parse_node_file(std::string_view toml, std::string_view file_name);

} // namespace nsa::spec
