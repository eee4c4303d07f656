#include "common/estimate/nodes.h"

#include <algorithm>
#include <cmath>

namespace nsa::estimate {

namespace {

std::vector<NodeShare> place_evenly(const NodesWanted& wanted,
                                    const std::vector<NodePlaces>& from) {
  std::vector<NodeShare> shares;
  int placed = 0;
  for (const NodePlaces& node : from) {
    const int share = std::min(wanted.per_node, wanted.ranks - placed);
    if (share <= 0 || static_cast<int>(shares.size()) == wanted.nodes) break;
    if (node.places < share) {
      if (shares.empty()) return {}; // rank 0 has no other place
      continue;
    }
    shares.push_back({node.node, placed, share});
    placed += share;
  }
  return placed == wanted.ranks ? shares : std::vector<NodeShare>{};
}

// The smallest that takes all of `left`, or else the largest.
std::vector<NodePlaces>::iterator next_node(std::vector<NodePlaces>& nodes, int left) {
  const auto by_places = [](const NodePlaces& a, const NodePlaces& b) {
    return a.places < b.places;
  };
  auto best = std::ranges::max_element(nodes, by_places);
  for (auto node = nodes.begin(); node != nodes.end(); ++node)
    if (node->places >= left && node->places < best->places) best = node;
  return best;
}

std::vector<NodeShare> place_on_fewest(int ranks, std::vector<NodePlaces> from) {
  std::vector<NodeShare> shares;
  int placed = 0;
  while (placed < ranks && !from.empty()) {
    const auto node = shares.empty() ? from.begin() : next_node(from, ranks - placed);
    const int share = std::min(node->places, ranks - placed);
    if (share <= 0) return {};
    shares.push_back({node->node, placed, share});
    placed += share;
    from.erase(node);
  }
  return placed == ranks ? shares : std::vector<NodeShare>{};
}

} // namespace

std::vector<NodeShare> place(const NodesWanted& wanted, const std::vector<NodePlaces>& from) {
  if (wanted.per_node > 0) return place_evenly(wanted, from);
  return place_on_fewest(wanted.ranks, from);
}

NodeTraffic traffic(const spec::RunSpec& spec, Placement placement,
                    const std::vector<NodeShare>& shares) {
  constexpr int64_t kFp32 = 4, kHalf = 2;
  NodeTraffic out;
  out.sent.assign(shares.size(), 0);
  int ranks = 0;
  for (const NodeShare& share : shares)
    ranks += share.ranks;
  if (ranks < 2) return out;
  const int64_t count = parameters(spec).total();
  const int64_t gradients =
      count * (spec.parallel.compress == spec::Compress::kOff ? kFp32 : kHalf);
  const int64_t weights = count * (placement.bf16 ? kHalf : kFp32);
  const int64_t moved = gradients + (spec.parallel.shard_update ? weights : gradients);
  for (size_t i = 0; i < shares.size(); ++i)
    out.sent[i] = moved / ranks * shares[i].ranks * (ranks - shares[i].ranks);
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

} // namespace nsa::estimate
