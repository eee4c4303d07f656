// Making the sockets of a mesh. Used once, at start-up.
#pragma once

#include "common/base/unique_fd.h"
#include "worker/mesh/mesh.h"

#include <filesystem>
#include <vector>

namespace nsa::comm {

// What connects a rank to one peer: unix stream sockets, non-blocking. Notes have one of their own,
// so that a rank which gives up in the middle of a message can still say because of whom.
struct PeerSockets {
  UniqueFd data, notes;
};

// result[p] is connected to rank p; result[rank] is invalid. Ranks listen in `folder`, which their
// user alone may enter, as long as peers are missing.
Result<std::vector<PeerSockets>> connect_peers(Rank rank, int world, Rendezvous& rendezvous,
                                               const std::filesystem::path& folder, Duration limit);

} // namespace nsa::comm
