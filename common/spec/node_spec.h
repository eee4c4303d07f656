// nsad.toml: settings of a node, as plain values with defaults. The file may be missing. It is read
// with a field table, like run.toml. No I/O.
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

// Values of resources.gpus, as its only value.
inline constexpr std::string_view kAllGpus = "all", kNoGpus = "none";
enum class MetricNames : uint8_t { kNone, kRuns, kAll };
constexpr auto choice_names(MetricNames) {
  return names_of("none", "runs", "all");
}

enum class NoticeOf : uint8_t { kEnd, kHang };
constexpr auto choice_names(NoticeOf) {
  return names_of("end", "hang");
}

struct NodeResourcesSection {
  int64_t cpu_slots = 0; // ranks on the CPU at the same time; 0: one for each core, at least 2
  std::vector<std::string> gpus = {std::string(kAllGpus)}; // or indices and UUIDs
  bool has_gpus() const { return gpus != std::vector<std::string>{std::string(kNoGpus)}; }
  std::vector<std::string> exclude_gpus;       // UUIDs that no run gets
  std::string gpu_locks = "/run/lock/nsa-gpu"; // shared by every nsad of the host
};

struct NodeAccessSection {
  std::string administrators; // group; empty: only root
};

struct NodeMetricsSection {
  bool enabled = true;
  std::string address = "127.0.0.1";      // loopback only
  int64_t port = 9464;                    // 0: any free port
  std::string socket;                     // unix socket instead of address and port
  std::string token_file;                 // has the bearer token that every scrape must send
  MetricNames names = MetricNames::kNone; // what nsa_run_info reveals of runs and users
};

struct NodeStorageSection {
  int64_t reserve_mib = 64; // disk space reserved for stopping and restarting
};

struct NodeProgramsSection { // empty: the program beside nsad
  std::string worker, shim;
  std::vector<std::string> worker_arguments; // appended to every rank's command line; for tests
};

// Limits of one rank; a burst may use a minute's worth of a rate. 0: no limit.
struct NodeQuotaSection {
  double events_per_second = 10, steps_per_second = 100;
  double log_mib_per_second = 4;
  int64_t processes_per_rank = 1024; // including threads; needs a writable cgroup, as memory does
  double memory_factor = 4;          // times the estimate of `nsactl plan`; never below 2 GiB a
                                     // rank
};

struct NodeSupervisionSection {
  std::string cgroup_root;    // cgroup v2 folder for attempts; empty: nsad's own; "none"
  bool restart_daemon = true; // user mode: shims start nsad again after a crash
};

struct NodeNotifySection { // whom to notify about runs
  std::vector<std::string> command;
  std::string webhook;
  std::vector<NoticeOf> of = {NoticeOf::kEnd, NoticeOf::kHang};
  double timeout_seconds = 30;
};

struct NodeSystemSection {   // for `nsad --system`
  std::string user = "nsad"; // the user that nsad becomes
  std::string group = "nsa"; // its members may submit runs
  int64_t minimum_uid = 1000;
};

struct NodeClusterSection {      // settings of a head, which other nodes may join
  std::string address;           // address to listen on; empty: no node may join
  std::string advertise;         // name by which nodes reach this head; empty: the host's
  int64_t port = 9465;           // 0: any free port
  std::string folder;            // has the authority's key and certificate; empty: the state folder
  int64_t certificate_days = 30; // validity of a node's certificate
  double orphan_seconds = 120;   // after so long without the head, ranks end
};

struct NodeKubernetesSection { // for runs submitted with --on kubernetes
  std::string image;           // image of the agents
  std::string space;           // namespace of their jobs; empty: kubectl's own
  std::string claim;           // volume with the runs
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
  NodeSpec spec; // usable only if `problems` is empty
  std::vector<Problem> problems;
  std::vector<std::string> old_names; // old names that were accepted, each with its replacement
};

// An empty text gives the defaults.
ParsedNode parse_node_file(std::string_view toml, std::string_view file_name);

} // namespace nsa::spec
