// File descriptors sent with bytes over a Unix socket (unix(7), SCM_RIGHTS).
#pragma once

#include "common/base/unique_fd.h"

#include <cstddef>
#include <span>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace nsa {

// Calls sendmsg(2) once, without SIGPIPE. Returns the number of bytes sent, or -1 with errno; never
// EINTR. The descriptors go with the first byte, so they are sent if any byte was. Without
// descriptors it sends plain bytes.
ssize_t send_with_descriptors(int socket, std::string_view bytes, std::span<const int> descriptors);

struct ReceivedBytes {
  ssize_t count = -1; // the result of recvmsg(2), with errno; never EINTR
  std::vector<UniqueFd> descriptors;
  bool dropped = false; // more descriptors than `most` came; the rest are closed
};
// Calls recvmsg(2) once with `flags` (recv(2)). Received descriptors are close-on-exec.
ReceivedBytes receive_with_descriptors(int socket, std::span<char> bytes, size_t most,
                                       int flags = 0);

} // namespace nsa
