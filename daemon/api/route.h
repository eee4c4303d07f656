// Parses a request: method, path and query become a Call. It is pure, so it can be fuzzed. Only the
// table in route.cpp holds the paths and who may use them. A test compares docs/api.md with it.
#pragma once

#include "common/base/result.h"
#include "common/net/http.h"
#include "daemon/api/access.h"
#include "daemon/api/log_reader.h"
#include "daemon/api/metric_records.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::api {

enum class Endpoint {
  kVersion,
  kDaemon,
  kDaemonStop,
  kSubmit,
  kRuns,
  kRun,
  kRemove,
  kStop,
  kCancel,
  kResume,
  kCheckpointNow,
  kSet,
  kSpec,
  kEvents,
  kLogs,
  kMetrics,
  kFollow,
  kCheckpoints,
  kAudit,
  kNodes,
  kNode,
  kNodeToken,
  kNodeRemove,
  kNodeDrain,
  kNodeUndrain,
  kDataPush,
  kDataPushed,
  kNetworkProbe,
  kNetworkProbed,
  kGpus,
  kGpuRelease,
};

struct Call {
  Endpoint endpoint = Endpoint::kVersion;
  std::string_view route; // "/v1/runs/{run}/logs"; static text, for metrics
  std::string run;        // id, prefix, name or @last, as given; empty means all runs
  std::string node;       // a name; empty if the route concerns no node
  std::string gpu;        // an index or a UUID; empty if the route concerns no GPU
  // The parameters of all endpoints' queries.
  bool all = false, follow = false, verify = false, positions = false, rows = false, unique = false;
  int64_t after = 0, limit = 1000;
  int rank = -1, attempt = 0;  // rank -1 means all ranks; attempt 0 means the newest
  std::optional<int64_t> tail; // lines
  std::string since;           // RFC 3339, UTC
  std::string about;           // a run in any form of `run`, or the id of a removed run
  Need need = Need::kNothing;
  std::string_view verb; // name of a change for the audit; empty if the call only reads
  std::vector<LogPosition> from;
  MetricQuery metrics;
};

struct RouteFailure {
  Error error;
  int status = 404;            // 404, 405 or 400
  std::string allowed_methods; // for status 405: "GET, DELETE"
};

// An unknown query parameter is an error that names the nearest known one.
tl::expected<Call, RouteFailure> parse_call(const std::string& method, const net::Target& target);

// Every route as "METHOD /path" in the order of the table, with its parameters. The docs' test
// reads it.
struct RouteRow {
  Endpoint endpoint;
  Need need;
  std::string_view verb, method, route;
  std::vector<std::string_view> parameters;
};
const std::vector<RouteRow>& route_table();

} // namespace nsa::api
