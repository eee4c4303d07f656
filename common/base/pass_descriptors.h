// Descriptors beside the bytes of a Unix socket (unix(7), SCM_RIGHTS).
#pragma once

#include "common/base/unique_fd.h"

#include <cstddef>
#include <span>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace nsa {

// One sendmsg(2) without SIGPIPE: how many bytes were taken, or -1 and errno; never EINTR. The
// descriptors go with the first byte, so they are gone when any was taken. None: plain bytes.
ssize_t send_with_descriptors(int socket, std::string_view bytes, std::span<const int> descriptors);

struct ReceivedBytes {
  ssize_t count = -1; // as recvmsg(2) returns it, errno set; never EINTR
  std::vector<UniqueFd> descriptors;
  bool dropped = false; // more came than `most`; those beyond are closed
};
// One recvmsg(2) with `flags` (recv(2)); what is received is close-on-exec.
ReceivedBytes receive_with_descriptors(int socket, std::span<char> bytes, size_t most,
                                       int flags = 0);

} // namespace nsa
