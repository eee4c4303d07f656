// Unix stream sockets by path, of any path length: an address holds 107 bytes, so longer ones go
// through an open descriptor of their folder (/proc/self/fd/N/name).
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <string>

namespace nsa::net {

// Close-on-exec, blocking. kUnavailable when there is no file or nobody listens.
Result<UniqueFd> connect_unix_socket(const std::string& path);

// Close-on-exec, listening, with this mode from the first moment that it accepts. A file that
// nobody listens on is replaced; kConflict when somebody does.
Result<UniqueFd> listen_unix_socket(const std::string& path, unsigned mode);

} // namespace nsa::net
