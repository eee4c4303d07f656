// The process_* metrics that every Prometheus client offers, read from /proc/self; prometheus-cpp
// has none. Any thread.
#pragma once

#include "daemon/metrics/catalogue.h"

namespace nsa::metrics {

const std::vector<Row>& process_catalogue();

} // namespace nsa::metrics
