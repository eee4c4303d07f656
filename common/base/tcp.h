// Listening TCP sockets. Stateless; callable from any thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>

namespace nsa {

// Listens on every address of this host. Port 0 selects a free port.
Result<UniqueFd> listen_tcp(uint16_t port);
Result<uint16_t> port_of(int listener);

} // namespace nsa
