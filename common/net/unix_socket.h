// Unix stream sockets by path of any length. An address has 107 bytes, so longer paths use an open
// descriptor of their folder (/proc/self/fd/N/name).
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <string>

namespace nsa::net {

// Returns a blocking close-on-exec socket. Error: kUnavailable if there is no file or nobody
// listens.
Result<UniqueFd> connect_unix_socket(const std::string& path);

// Returns a listening close-on-exec socket, which has this mode before it accepts. Replaces a file
// on which nobody listens. Error: kConflict if somebody does.
Result<UniqueFd> listen_unix_socket(const std::string& path, unsigned mode);

} // namespace nsa::net
