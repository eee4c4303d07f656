// Listening TCP sockets. Keeps no state; any thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>

namespace nsa {

// On every address of this host. Port 0: any free one.
Result<UniqueFd> listen_tcp(uint16_t port);
Result<uint16_t> port_of(int listener);

} // namespace nsa
