#include "common/estimate/nodes.h"

#include <algorithm>
#include <cmath>

namespace nsa::estimate {

namespace {

std::vector<NodePart> place_evenly(const NodesWanted& wanted, const std::vector<NodeSlots>& from) {
  std::vector<NodePart> parts;
  int placed = 0;
  for (const NodeSlots& node : from) {
    const int part = std::min(wanted.per_node, wanted.ranks - placed);
    if (part <= 0 || static_cast<int>(parts.size()) == wanted.nodes) break;
    if (node.slots < part) {
      if (parts.empty()) return {}; // rank 0 has no other place
      continue;
    }
    parts.push_back({node.node, placed, part});
    placed += part;
  }
  return placed == wanted.ranks ? parts : std::vector<NodePart>{};
}

// Returns the smallest node that takes all of `left`; otherwise the largest node.
std::vector<NodeSlots>::iterator next_node(std::vector<NodeSlots>& nodes, int left) {
  const auto by_slots = [](const NodeSlots& a, const NodeSlots& b) { return a.slots < b.slots; };
  auto best = std::ranges::max_element(nodes, by_slots);
  for (auto node = nodes.begin(); node != nodes.end(); ++node)
    if (node->slots >= left && node->slots < best->slots) best = node;
  return best;
}

std::vector<NodePart> place_on_fewest(int ranks, std::vector<NodeSlots> from) {
  std::vector<NodePart> parts;
  int placed = 0;
  while (placed < ranks && !from.empty()) {
    const auto node = parts.empty() ? from.begin() : next_node(from, ranks - placed);
    const int part = std::min(node->slots, ranks - placed);
    if (part <= 0) return {};
    parts.push_back({node->node, placed, part});
    placed += part;
    from.erase(node);
  }
  return placed == ranks ? parts : std::vector<NodePart>{};
}

} // namespace

std::vector<NodePart> place(const NodesWanted& wanted, const std::vector<NodeSlots>& from) {
  if (wanted.per_node > 0) return place_evenly(wanted, from);
  return place_on_fewest(wanted.ranks, from);
}

NodeTraffic traffic(const spec::RunSpec& spec, Placement placement,
                    const std::vector<NodePart>& parts) {
  constexpr int64_t kFp32 = 4, kHalf = 2;
  NodeTraffic out;
  out.sent.assign(parts.size(), 0);
  int ranks = 0;
  for (const NodePart& part : parts)
    ranks += part.ranks;
  if (ranks < 2) return out;
  const int64_t count = parameters(spec).total();
  const int64_t gradients =
      count * (spec.parallel.compress == spec::Compress::kOff ? kFp32 : kHalf);
  const int64_t weights = count * (placement.bf16 ? kHalf : kFp32);
  const int64_t moved = gradients + (spec.parallel.shard_update ? weights : gradients);
  for (size_t i = 0; i < parts.size() && parts.size() > 1; ++i)
    out.sent[i] = placement.gpu ? moved / ranks * (ranks - 1)
                                : moved / ranks * parts[i].ranks * (ranks - parts[i].ranks);
  constexpr double kMebi = 1 << 20;
  const double buckets =
      std::ceil(static_cast<double>(count * kFp32) / (spec.parallel.bucket_mib * kMebi));
  constexpr int kAgreement = 2; // the sync scalars, reduced and gathered
  out.exchanges = 2 * std::max(1, static_cast<int>(buckets)) + kAgreement;
  return out;
}

double exchange_seconds(const NodeTraffic& traffic, double bytes_per_second,
                        double latency_seconds) {
  const auto most = std::ranges::max_element(traffic.sent);
  if (most == traffic.sent.end() || *most == 0 || bytes_per_second <= 0) return 0;
  return static_cast<double>(*most) / bytes_per_second + traffic.exchanges * latency_seconds;
}

std::optional<MeasuredCost> measured_cost(const NodeTraffic& traffic,
                                          const std::vector<NodePart>& parts,
                                          const std::vector<MeasuredLink>& links) {
  MeasuredCost cost;
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t j = i + 1; j < parts.size(); ++j) {
      ++cost.pairs;
      const auto found = std::ranges::find_if(links, [&](const MeasuredLink& link) {
        return (link.node == parts[i].node && link.other == parts[j].node) ||
               (link.node == parts[j].node && link.other == parts[i].node);
      });
      if (found == links.end()) continue;
      ++cost.measured;
      const double seconds =
          exchange_seconds(traffic, found->bytes_per_second, found->latency_seconds);
      if (seconds <= cost.seconds && cost.measured > 1) continue;
      cost.seconds = seconds;
      cost.slowest = *found;
    }
  return cost.measured > 0 ? std::optional(cost) : std::nullopt;
}

} // namespace nsa::estimate
