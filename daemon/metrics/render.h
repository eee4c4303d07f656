// Converts a snapshot to the Prometheus text format 0.0.4. Pure; any thread may call it.
#pragma once

#include "daemon/metrics/snapshot.h"

#include <string>

namespace nsa::metrics {

// Leaves out metrics without a sample. Includes the usual process_* metrics of this process.
std::string render(const Snapshot& snapshot);

} // namespace nsa::metrics
