// Nodes in the API: this nsad's own, and those that have joined it as their head. Plain values.
#pragma once

#include "common/base/choice_or_text.h"
#include "common/base/ids.h"
#include "common/wire/json_members.h"
#include "common/wire/measured_by.h"
#include "common/wire/time.h"

#include <string>
#include <vector>

namespace nsa::wire {

enum class NodeRole : uint8_t {
  kSingle, // no node may join this nsad
  kHead,   // accepts nodes, and answers users
  kAgent,  // has joined a head
};
constexpr auto choice_names(NodeRole) {
  return names_of("single", "head", "agent");
}

enum class NodeStatus : uint8_t {
  kReady,   // connected
  kDrained, // connected, but no new run starts there
  kLost,    // not connected
  kRemoved, // its certificate is rejected
};
constexpr auto choice_names(NodeStatus) {
  return names_of("ready", "drained", "lost", "removed");
}

// Bandwidth and latency of training's collectives between two nodes, as last measured.
struct NetworkFigures {
  double latency_seconds = 0;  // one-way latency of a message
  double bytes_per_second = 0; // rate in each direction while both nodes send
  ChoiceOrText<MeasuredBy> by = MeasuredBy::kTcp;
};
struct NetworkLink {
  std::string node; // the other node
  NetworkFigures figures;
  Time measured_at;
};

struct NodeView {
  std::string name;
  ChoiceOrText<NodeRole> role;
  ChoiceOrText<NodeStatus> state;
  std::string address; // where nodes can join, or from where it last connected; empty: not known
  std::string problem; // why nodes cannot join now; empty: they can, or need not
  std::string build;   // version and commit; sent when it connected, like the facts below
  std::string boot_id;
  int64_t processors = 0;
  int64_t cpu_slots = 0; // ranks that it runs on CPUs at the same time
  RunId run;             // run whose job started it, and which alone may use it; empty: any run
  uint64_t memory_bytes = 0;
  std::vector<std::string> gpus; // names
  Time joined_at, certificate_expires_at, heard_at, drained_at, removed_at;
  double clock_offset_seconds = 0;  // the head's clock minus the node's
  double round_trip_seconds = 0;    // 0: not measured yet
  std::vector<NetworkLink> network; // links to the nodes that were measured
};

// The response to POST /v1/node-tokens. The token lets one node join, once.
struct NodeToken {
  std::string token;
  std::string head; // host and port, as far as the head knows them
  Time expires_at;
};

// State of work on nodes that continues after its request was answered.
enum class WorkState : uint8_t { kRunning, kDone, kFailed };
constexpr auto choice_names(WorkState) {
  return names_of("running", "done", "failed");
}

// A push of a data set to a node, running or the last one: the response to POST and GET
// /v1/nodes/{node}/data.
struct DataPushRequest {
  std::string path; // path of the data set on both head and node
};
struct DataPush {
  std::string node, path, digest;
  ChoiceOrText<WorkState> state;
  uint64_t here_bytes = 0, total_bytes = 0; // bytes that the node has, and all bytes
  uint64_t fetched_bytes = 0;               // sent over the link, once it is done
  int64_t damaged = 0;                      // files that were damaged and sent again
  double seconds = 0;
  std::string problem, next; // why it failed, and what to do
};

// A measurement of the network between two nodes: the response to POST and GET
// /v1/nodes/{node}/probe.
struct NetworkProbeRequest {
  std::string with;      // the other node
  bool cpu = false;      // use TCP, even if both nodes have a free GPU
  std::string interface; // interface for NCCL; empty: as the node's nsad has it
};
struct NetworkProbe {
  std::string node, with;
  ChoiceOrText<WorkState> state;
  NetworkFigures figures; // set once it is done
  Time measured_at;
  std::string problem, next; // why it failed, and what to do
};

NSA_DECLARE_JSON(NetworkFigures);
NSA_DECLARE_JSON(NetworkLink);
NSA_DECLARE_JSON(NetworkProbeRequest);
NSA_DECLARE_JSON(NetworkProbe);
NSA_DECLARE_JSON(DataPushRequest);
NSA_DECLARE_JSON(DataPush);
NSA_DECLARE_JSON(NodeView);
NSA_DECLARE_JSON(NodeToken);

} // namespace nsa::wire
