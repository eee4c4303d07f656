// The rendezvous of ranks on several nodes: the port of rank 0's store, with the address by which
// each node reaches it. Pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace nsa::parts {

// For the node of rank 0 itself.
std::string meeting_at_home(uint16_t port);
// For the other nodes. `first` is the address from which rank 0's node calls its head; empty means
// the head's own node. A node that calls over loopback is on the head's machine.
std::string meeting_elsewhere(const std::string& first, uint16_t port);
// The same for a node, which knows the name by which it reaches its head.
std::string with_name_of_head(const std::string& meeting, const std::string& head);

} // namespace nsa::parts
