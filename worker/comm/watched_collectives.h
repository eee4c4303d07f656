// Wraps any Collectives so that the progress page shows when each one is enqueued, started and
// completed. The training thread calls it; on a GPU also autograd's thread while that one waits.
#pragma once

#include "common/progress/page.h"
#include "worker/comm/collectives.h"

#include <functional>

namespace nsa::comm {

// Stores a word of the page behind the device's work so far (runtime::Runtime::mark).
using Mark = std::function<void(progress::DeviceWord word, uint64_t value)>;

// One of a single rank is given back as it is: it has nobody to wait for.
std::unique_ptr<Collectives> watch(std::unique_ptr<Collectives> collectives,
                                   progress::Writer& writer, Mark mark);

} // namespace nsa::comm
