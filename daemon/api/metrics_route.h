// GET /metrics (Prometheus text), and which callers get an answer. Every account of a host can
// reach a port on loopback, and so can a web page in a browser on that host. Therefore the Host
// header must name loopback, which a page of another site cannot achieve. A token may be required,
// too.
//
// All functions run on the loop's thread.
#pragma once

#include "common/net/http.h"
#include "common/net/http_server.h"
#include "daemon/metrics/snapshot.h"

#include <functional>
#include <string>

namespace nsa::api {

struct MetricsGuard {
  bool check_host = true; // false for a unix socket, whose mode guards it
  std::string token;      // required value of "Authorization: Bearer ..."; empty if none
};

// Each scrape takes a new snapshot.
net::Handler metrics_handler(std::function<metrics::Snapshot()> snapshot, MetricsGuard guard = {});

// Allows few connections and few scrapes, so that a flood costs nsad a limited share of its time
// and descriptors.
net::HttpLimits metrics_limits();

} // namespace nsa::api
