// Whether the network between two nodes of an attempt carries no data, and who sees it. NCCL and
// the CPU ranks alike send over TCP: where packets are lost, the sender's kernel sends the same
// bytes again and again, and nothing is acknowledged. A rank that is stopped, deadlocked or slow is
// different, since its kernel acknowledges.
//
// Of what goes over InfiniBand the kernel has no such tables, so nothing is found there.
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
  std::string node; // as people read it
  std::vector<RankLink> links;
};
std::vector<RankLink> read_links(const std::vector<wire::RankIdentity>& ranks);

struct NetworkFault {
  Rank rank = 0;                      // that sees it
  std::string nodes;                  // "ant and bee"
  std::vector<std::string> witnesses; // a sentence for each end that sees it
};
// The pair between which the most is sent again. Pure.
std::optional<NetworkFault> find_network_fault(const std::vector<LinksOfNode>& nodes);

} // namespace nsa::parts
