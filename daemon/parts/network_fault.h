// Whether the network between two nodes of an attempt carries no data, and who sees it. NCCL and
// the CPU ranks send over TCP. If packets are lost, the sender's kernel retransmits the same bytes
// again and again, and gets no acknowledgement. A stopped, deadlocked or slow rank is different,
// since its kernel acknowledges.
//
// The kernel has no such tables for InfiniBand, so no fault is found there.
#pragma once

#include "common/base/ids.h"
#include "common/wire/messages.h"
#include "daemon/parts/messages.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::parts {

// The connections of all ranks on one node.
struct LinksOfNode {
  std::string node; // name for people
  std::vector<RankLink> links;
};
std::vector<RankLink> read_links(const std::vector<wire::RankIdentity>& ranks);

struct NetworkFault {
  Rank rank = 0;                      // the rank that sees the fault
  std::string nodes;                  // "ant and bee"
  std::vector<std::string> witnesses; // one sentence for each end that sees it
};
// The pair of nodes with the most retransmissions in a row. Pure function.
std::optional<NetworkFault> find_network_fault(const std::vector<LinksOfNode>& nodes);

} // namespace nsa::parts
