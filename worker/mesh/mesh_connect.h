// Connects the sockets of a mesh. Used once, at start-up.
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

// Connected, non-blocking stream sockets to one peer. Notes have a separate socket, so that a rank
// which gives up in the middle of a message can still say which rank it blames.
struct PeerSockets {
  UniqueFd data, notes;
};

// result[p] is connected to rank p; result[rank] is invalid. Ranks listen in `folder` until all
// peers are connected. Only their user may access `folder`.
Result<std::vector<PeerSockets>> connect_peers(Rank rank, int world, Rendezvous& rendezvous,
                                               const std::filesystem::path& folder, Duration limit);
// The same between hosts. Each rank listens on its own port and publishes it in the rendezvous.
Result<std::vector<PeerSockets>> connect_peers_over_tcp(Rank rank, int world,
                                                        Rendezvous& rendezvous,
                                                        const MeshOverTcp& tcp, Duration limit);

// Shared by both: the rendezvous key of a listening rank, the wait until all ranks above `self`
// have connected, and the mode of the sockets.
std::string mesh_key(Rank rank);
Status wait_for_peers(Visitors& visitors, const std::vector<PeerSockets>& sockets, Rank self,
                      MonotonicTime end);
Status set_non_blocking(const std::vector<PeerSockets>& sockets);

} // namespace nsa::comm
