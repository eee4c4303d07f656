// Snapshot -> Prometheus text format 0.0.4. Pure; any thread.
#pragma once

#include "daemon/metrics/snapshot.h"

#include <string>

namespace nsa::metrics {

// Metrics without a sample are left out. Includes the usual process_* metrics of this process.
std::string render(const Snapshot& snapshot);

} // namespace nsa::metrics
