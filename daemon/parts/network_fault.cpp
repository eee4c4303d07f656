#include "daemon/parts/network_fault.h"

#include "common/base/text.h"
#include "daemon/proc/tcp_links.h"

#include <algorithm>
#include <map>

namespace nsa::parts {

namespace {

// The kernel waits 0.2 s, then 0.4, 0.8 and so on: the third retransmission is 1.4 s after the
// first loss. A network that loses single packets does not get there.
constexpr int kMany = 3;

// What one node sees of its connection to another.
struct Sight {
  Rank rank = 0;
  std::string peer; // address
  int retransmits = 0;
  uint64_t waiting_bytes = 0;
};

} // namespace

std::vector<RankLink> read_links(const std::vector<wire::RankIdentity>& ranks) {
  std::vector<RankLink> all;
  for (const wire::RankIdentity& rank : ranks)
    if (const auto links = proc::read_tcp_links(static_cast<pid_t>(rank.pid)))
      for (const proc::TcpLink& link : *links)
        all.push_back({rank.rank, link.own, link.peer, link.waiting_bytes, link.retransmits});
  return all;
}

std::optional<NetworkFault> find_network_fault(const std::vector<LinksOfNode>& nodes) {
  std::map<std::string, std::string> node_of; // address -> node
  for (const LinksOfNode& node : nodes)
    for (const RankLink& link : node.links)
      if (link.own != link.peer) node_of.emplace(link.own, node.node);
  std::map<std::pair<std::string, std::string>, Sight> sights; // by node and other node
  for (const LinksOfNode& node : nodes)
    for (const RankLink& link : node.links) {
      const auto other = node_of.find(link.peer);
      if (link.retransmits < kMany || link.waiting_bytes == 0 || other == node_of.end() ||
          other->second == node.node)
        continue;
      Sight& sight = sights[{node.node, other->second}];
      if (link.retransmits > sight.retransmits)
        sight = {link.rank, link.peer, link.retransmits, link.waiting_bytes};
    }
  const auto worst = std::ranges::max_element(
      sights, {}, [](const auto& entry) { return entry.second.retransmits; });
  if (worst == sights.end()) return std::nullopt;
  const auto& [from, to] = worst->first;
  NetworkFault fault;
  fault.rank = worst->second.rank;
  fault.nodes = std::min(from, to) + " and " + std::max(from, to);
  for (const auto& ends : {std::pair(from, to), std::pair(to, from)})
    if (const auto seen = sights.find(ends); seen != sights.end())
      fault.witnesses.push_back("rank " + std::to_string(seen->second.rank) + " on " + ends.first +
                                " has sent " + format_bytes(seen->second.waiting_bytes) + " to " +
                                ends.second + " (" + seen->second.peer + ") " +
                                std::to_string(seen->second.retransmits + 1) +
                                " times, and nothing was acknowledged");
  return fault;
}

} // namespace nsa::parts
