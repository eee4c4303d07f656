// Decides which rank runs on which node, and what a step then sends over the network. nsad places
// runs with it, and `nsactl plan` shows it. Pure functions.
#pragma once

#include "common/base/json.h"
#include "common/estimate/estimate.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::estimate {

struct NodeSlots {
  std::string node; // empty: nsad's own node
  int slots = 0;    // number of ranks that it can take
};

struct NodePart {
  std::string node;
  int first_rank = 0, ranks = 0;
  bool operator==(const NodePart&) const = default;
};

// Places `per_node` ranks on each of at most `nodes` nodes. With per_node = 0 it uses as few nodes
// as possible: whole nodes first, and the rest on the smallest one that suffices. The first of
// `from` gets rank 0. The result is empty if the ranks do not fit.
struct NodesWanted {
  int nodes = 1, per_node = 0, ranks = 1;
};
std::vector<NodePart> place(const NodesWanted& wanted, const std::vector<NodeSlots>& from);

// Network traffic of one step. It has two phases: gradients are reduced, then sums or updated
// weights are gathered. On CPUs every rank exchanges directly with every other one (worker/mesh).
// NCCL passes the bytes through rings, each of which enters and leaves a node once.
struct NodeTraffic {
  std::vector<int64_t> sent; // bytes from each part to the others; it receives as many
  int exchanges = 0;         // rounds in which every rank waits for all others
};
NodeTraffic traffic(const spec::RunSpec& spec, Placement placement,
                    const std::vector<NodePart>& parts);

// Returns the least time of a step's exchanges. The node that sends most has this bandwidth (in
// each direction), and a message takes `latency_seconds`.
double exchange_seconds(const NodeTraffic& traffic, double bytes_per_second,
                        double latency_seconds);

// Measured network between two nodes.
struct MeasuredLink {
  std::string node, other;
  double latency_seconds = 0, bytes_per_second = 0;
};
// The least time of a step's exchanges on the slowest measured link between a run's nodes; nullopt
// if no link was measured.
struct MeasuredCost {
  double seconds = 0;
  MeasuredLink slowest;
  int measured = 0, pairs = 0;
};
std::optional<MeasuredCost> measured_cost(const NodeTraffic& traffic,
                                          const std::vector<NodePart>& parts,
                                          const std::vector<MeasuredLink>& links);

} // namespace nsa::estimate
