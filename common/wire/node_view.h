// Nodes as the API shows them: this nsad's own, and those that have joined it as their head.
// Plain values.
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
  kHead,   // it lets nodes join, and answers users
  kAgent,  // it has joined
};
constexpr auto choice_names(NodeRole) {
  return names_of("single", "head", "agent");
}

enum class NodeStatus : uint8_t {
  kReady,   // it is heard
  kDrained, // it is, and no new run starts there
  kLost,    // it is not heard
  kRemoved, // its certificate is refused
};
constexpr auto choice_names(NodeStatus) {
  return names_of("ready", "drained", "lost", "removed");
}

// What the collectives of training get between two nodes, as it was measured last.
struct NetworkFigures {
  double latency_seconds = 0;  // of a message, one way
  double bytes_per_second = 0; // in each direction, while both send
  ChoiceOrText<MeasuredBy> by = MeasuredBy::kTcp;
};
struct NetworkLink {
  std::string node; // the other one
  NetworkFigures figures;
  Time measured_at;
};

struct NodeView {
  std::string name;
  ChoiceOrText<NodeRole> role;
  ChoiceOrText<NodeStatus> state;
  std::string address; // where nodes may join, or where it called from last; empty: not known
  std::string problem; // why nodes cannot join now; empty: they can, or are not meant to
  std::string build;   // version and commit; like the facts below of its last call
  std::string boot_id;
  int64_t processors = 0;
  int64_t cpu_slots = 0; // ranks on CPU that it takes at a time
  RunId run;             // whose job started it: no other run gets a place there; empty: any
  uint64_t memory_bytes = 0;
  std::vector<std::string> gpus; // names
  Time joined_at, certificate_expires_at, heard_at, drained_at, removed_at;
  double clock_offset_seconds = 0;  // the head's clock minus the node's
  double round_trip_seconds = 0;    // 0: not measured yet
  std::vector<NetworkLink> network; // to the nodes to which it was measured
};

// The answer to POST /v1/node-tokens. Whoever has the token can join, once.
struct NodeToken {
  std::string token;
  std::string head; // host and port, as far as the head knows them
  Time expires_at;
};

// Of work on nodes that goes on after its request was answered.
enum class WorkState : uint8_t { kRunning, kDone, kFailed };
constexpr auto choice_names(WorkState) {
  return names_of("running", "done", "failed");
}

// A data set on its way to a node, or the last one that was: the answer to POST and GET
// /v1/nodes/{node}/data.
struct DataPushRequest {
  std::string path; // of the data set, on the head and on the node
};
struct DataPush {
  std::string node, path, digest;
  ChoiceOrText<WorkState> state;
  uint64_t here_bytes = 0, total_bytes = 0; // of the files that the node has by now
  uint64_t fetched_bytes = 0;               // that came over the link, once it is done
  int64_t damaged = 0;                      // files whose copy was damaged and came anew
  double seconds = 0;
  std::string problem, next; // why it failed, and what to do
};

// A measurement of the network between two nodes: the answer to POST and GET
// /v1/nodes/{node}/probe.
struct NetworkProbeRequest {
  std::string with;      // the other node
  bool cpu = false;      // over TCP, also where both nodes have a free GPU
  std::string interface; // that NCCL is to use; empty: as the node's nsad has it
};
struct NetworkProbe {
  std::string node, with;
  ChoiceOrText<WorkState> state;
  NetworkFigures figures; // once it is done
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
