// Wraps any Collectives so that the progress page shows when each operation is enqueued, started
// and completed. The training thread calls it; on a GPU autograd's thread does, too, while the
// training thread waits.
#pragma once

#include "common/progress/page.h"
#include "worker/comm/collectives.h"

#include <functional>

namespace nsa::comm {

// Stores a word of the page after the device's work so far (runtime::Runtime::mark).
using Mark = std::function<void(progress::DeviceWord word, uint64_t value)>;

// Returns the collectives of a single rank unchanged, because it has no peers to wait for.
std::unique_ptr<Collectives> watch(std::unique_ptr<Collectives> collectives,
                                   progress::Writer& writer, Mark mark);

} // namespace nsa::comm
