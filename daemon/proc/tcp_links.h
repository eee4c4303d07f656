// TCP connections of a process, as the kernel's tables show them. Safe for stopped and dead
// processes. Any thread.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

struct TcpLink {
  std::string own,
      peer; // addresses as inet_ntop(3) writes them; IPv4 also where the socket is IPv6
  uint64_t waiting_bytes = 0; // sent, and not acknowledged by the peer's kernel
  // How often in a row the kernel has sent the oldest of them again. A peer that is slow, stopped
  // or deadlocked acknowledges: this counts only while no packet comes back.
  int retransmits = 0;
};

// Established connections of those inodes. `table`: the text of /proc/net/tcp or tcp6. Pure.
std::vector<TcpLink> parse_tcp_table(std::string_view table, const std::set<uint64_t>& inodes);

// All established ones of the process, in the network that it sees.
Result<std::vector<TcpLink>> read_tcp_links(pid_t pid);

} // namespace nsa::proc
