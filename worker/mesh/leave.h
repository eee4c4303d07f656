// The orderly end of ranks. Any thread.
#pragma once

#include "common/base/ids.h"
#include "worker/mesh/rendezvous.h"

namespace nsa::comm {

// Behind the last step ranks differ by what only one does then: rank 0 flushes its outputs.
inline constexpr Duration kMostLeaveTime = std::chrono::seconds(30);

// Says that this rank asks nothing more of its peers, and waits until all have said so.
// kUnavailable, naming who has not within `limit` (two seconds more for each that is missing): such
// a peer is gone or hangs, and nothing is owed to it. Rank 0, which serves the rendezvous, leaves
// last: when those that came have left, or after `limit` once more.
Status take_leave(Rendezvous& rendezvous, Rank rank, int world, Duration limit);

} // namespace nsa::comm
