// Orderly shutdown of ranks. Callable from any thread.
#pragma once

#include "common/base/ids.h"
#include "worker/mesh/rendezvous.h"

namespace nsa::comm {

// After the last step, ranks may differ by the time in which rank 0 flushes its outputs.
inline constexpr Duration kMostLeaveTime = std::chrono::seconds(30);

// Announces that this rank needs nothing more from its peers, and waits until all have announced
// the same. Error: kUnavailable names the ranks that have not within `limit` (plus two seconds for
// each missing one), because they are gone or hang. Rank 0 serves the rendezvous, so it leaves
// last: when the announced ranks have left, or after `limit` again.
Status take_leave(Rendezvous& rendezvous, Rank rank, int world, Duration limit);

} // namespace nsa::comm
