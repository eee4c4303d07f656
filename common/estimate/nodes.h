// Which rank goes on which node, and what then crosses the network in a step. nsad slots runs by
// it and `nsactl plan` shows it. Pure functions.
#pragma once

#include "common/base/json.h"
#include "common/estimate/estimate.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::estimate {

struct NodeSlots {
  std::string node; // empty: nsad's own
  int slots = 0;    // ranks that it can take
};

struct NodePart {
  std::string node;
  int first_rank = 0, ranks = 0;
  bool operator==(const NodePart&) const = default;
};

// `per_node` ranks on each of at most `nodes` nodes; 0: on as few nodes as can take them, whole
// nodes first, and the rest on the smallest that suffices. The first of `from` has rank 0. Empty:
// they do not fit.
struct NodesWanted {
  int nodes = 1, per_node = 0, ranks = 1;
};
std::vector<NodePart> place(const NodesWanted& wanted, const std::vector<NodeSlots>& from);

// Of one step, in two phases: gradients are reduced, and then sums or updated weights are gathered.
// On CPUs every rank exchanges with every other directly (worker/mesh). NCCL passes the bytes on in
// rings, each of which enters and leaves a node once.
struct NodeTraffic {
  std::vector<int64_t> sent; // by each part to ranks of the others; as much is received
  int exchanges = 0;         // rounds in which every rank waits for every other
};
NodeTraffic traffic(const spec::RunSpec& spec, Placement placement,
                    const std::vector<NodePart>& parts);

// How long a step's exchanges take at least, where the node that sends most has this bandwidth (in
// each direction) and a message takes `latency_seconds`.
double exchange_seconds(const NodeTraffic& traffic, double bytes_per_second,
                        double latency_seconds);

// What a measurement says of the network between two nodes.
struct MeasuredLink {
  std::string node, other;
  double latency_seconds = 0, bytes_per_second = 0;
};
// What a step's exchanges cost at least on the slowest of the links that were measured between the
// nodes of a run. Nothing: none was.
struct MeasuredCost {
  double seconds = 0;
  MeasuredLink slowest;
  int measured = 0, pairs = 0;
};
std::optional<MeasuredCost> measured_cost(const NodeTraffic& traffic,
                                          const std::vector<NodePart>& parts,
                                          const std::vector<MeasuredLink>& links);

} // namespace nsa::estimate
