// Making the sockets of a mesh: one connected unix stream socket a peer. Used once, at start-up.
#pragma once

#include "common/base/unique_fd.h"
#include "worker/comm/mesh.h"

#include <vector>

namespace nsa::comm {

// result[p] is connected to rank p; result[rank] is invalid. All are non-blocking.
Result<std::vector<UniqueFd>> connect_peers(Rank rank, int world, Rendezvous& rendezvous,
                                            Duration limit);

} // namespace nsa::comm
