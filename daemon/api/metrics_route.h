// GET /metrics (Prometheus text), and which callers get an answer. Every account of a host can
// reach a port on loopback. So can a web page in a browser on that host. Therefore the Host header
// must name loopback, which a page of another site cannot achieve. A token may be required, too.
//
// All on the loop's thread.
#pragma once

#include "common/net/http.h"
#include "common/net/http_server.h"
#include "daemon/metrics/snapshot.h"

#include <functional>
#include <string>

namespace nsa::api {

struct MetricsGuard {
  bool check_host = true; // false behind a unix socket, whose mode has decided
  std::string token;      // not empty: what "Authorization: Bearer ..." must say
};

// The snapshot is taken at each scrape.
net::Handler metrics_handler(std::function<metrics::Snapshot()> snapshot, MetricsGuard guard = {});

// Few connections, and no more scrapes than somebody needs: a flood costs nsad a bounded share of
// its time and of its descriptors.
net::HttpLimits metrics_limits();

} // namespace nsa::api
