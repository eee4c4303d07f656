// The process_* metrics that Prometheus clients usually offer, read from /proc/self, because
// prometheus-cpp has none. Any thread may call it.
#pragma once

#include "daemon/metrics/catalogue.h"

namespace nsa::metrics {

const std::vector<Row>& process_catalogue();

} // namespace nsa::metrics
