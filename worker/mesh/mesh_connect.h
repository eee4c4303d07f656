// Making the sockets of a mesh. Used once, at start-up.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "worker/mesh/rendezvous.h"
#include "worker/mesh/tcp.h"
#include "worker/mesh/visitors.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nsa::comm {

// What connects a rank to one peer: stream sockets, non-blocking. Notes have one of their own,
// so that a rank which gives up in the middle of a message can still say because of whom.
struct PeerSockets {
  UniqueFd data, notes;
};

// result[p] is connected to rank p; result[rank] is invalid. Ranks listen in `folder`, which their
// user alone may enter, as long as peers are missing.
Result<std::vector<PeerSockets>> connect_peers(Rank rank, int world, Rendezvous& rendezvous,
                                               const std::filesystem::path& folder, Duration limit);
// The same between hosts: each rank listens on a port of its own, which the rendezvous tells.
Result<std::vector<PeerSockets>> connect_peers_over_tcp(Rank rank, int world,
                                                        Rendezvous& rendezvous,
                                                        const MeshOverTcp& tcp, Duration limit);

// What both do: under which key of the rendezvous a rank tells where it listens, how it waits until
// all ranks above `self` have connected, and how the sockets are then used.
std::string mesh_key(Rank rank);
Status wait_for_peers(Visitors& visitors, const std::vector<PeerSockets>& sockets, Rank self,
                      MonotonicTime end);
Status set_non_blocking(const std::vector<PeerSockets>& sockets);

} // namespace nsa::comm
