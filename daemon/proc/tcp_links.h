// TCP connections of a process, from the kernel's tables. Safe for stopped and dead processes. Any
// thread may call it.
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
      peer; // addresses as inet_ntop(3) writes them; IPv4 also if the socket is IPv6
  uint64_t waiting_bytes = 0; // bytes sent that the peer's kernel has not acknowledged
  // How many times in a row the kernel has retransmitted the oldest unacknowledged segment. A slow,
  // stopped or deadlocked peer still acknowledges, so this counts only while no packet comes back.
  int retransmits = 0;
};

// Established connections with these socket inodes. `table` is the text of /proc/net/tcp or tcp6.
// Pure function.
std::vector<TcpLink> parse_tcp_table(std::string_view table, const std::set<uint64_t>& inodes);

// All established connections of the process, in its network namespace.
Result<std::vector<TcpLink>> read_tcp_links(pid_t pid);

} // namespace nsa::proc
