#include "daemon/api/route.h"

#include "common/base/text.h"

#include <algorithm>
#include <charconv>

namespace nsa::api {

namespace {

// Longer than any name. Limits the text that reaches the ledger.
constexpr size_t kMaxPartText = 256;

tl::unexpected<RouteFailure> refuse(int status, ErrorCode code, std::string what,
                                    std::string next = {}, std::string allowed = {}) {
  return tl::unexpected<RouteFailure>(
      RouteFailure{{code, std::move(what), std::move(next)}, status, std::move(allowed)});
}

// Returns whether `path` has the route's shape. Sets `named` to the text at its {run}, {node} or
// {gpu}.
bool matches(std::string_view route, std::string_view path, std::string& named) {
  const size_t part = route.find('{');
  if (part == std::string_view::npos) return route == path;
  if (path.size() <= part || path.substr(0, part) != route.substr(0, part)) return false;
  const size_t end = std::min(path.find('/', part), path.size());
  if (end == part || path.substr(end) != route.substr(route.find('}') + 1)) return false;
  const auto decoded = net::decode_component(path.substr(part, end - part));
  if (decoded) named = *decoded;
  return decoded.has_value();
}

bool parse_integer(const std::string& text, int64_t low, int64_t high, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty() &&
         value >= low && value <= high;
}

bool parse_flag(const std::string& text, bool& value) {
  if (text.empty() || text == "true" || text == "1") return value = true, true;
  if (text == "false" || text == "0") return value = false, true;
  return false;
}

// Accepts "2026-01-31T09:12:01Z" with any number of fraction digits. Only UTC is accepted, so that
// texts compare in the order of time.
bool is_utc_time(const std::string& text) {
  static constexpr std::string_view kShape = "dddd-dd-ddTdd:dd:dd";
  if (text.size() < kShape.size() + 1 || text.size() > 40 || text.back() != 'Z') return false;
  for (size_t i = 0; i < kShape.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == 'd' ? !digit : text[i] != kShape[i]) return false;
  }
  const std::string_view fraction(text.data() + kShape.size(), text.size() - kShape.size() - 1);
  return fraction.empty() ||
         (fraction[0] == '.' && fraction.size() > 1 &&
          fraction.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

// Parses "POSITION,POSITION,...", as the lines of a log give them.
bool parse_positions(const std::string& text, std::vector<LogPosition>& positions) {
  for (const std::string& part : split(text, ',')) {
    const auto position = LogPosition::parse(part);
    if (!position) return false;
    positions.push_back(*position);
  }
  return true;
}

// Says which values set_parameter() accepts, for its error messages.
std::string expected_value(const std::string& name) {
  if (name == "since") return "write a UTC time like 2026-01-31T09:12:01Z";
  if (name == "rank") return "write the number of a rank, or all";
  if (name == "attempt") return "write the number of an attempt, from 1 on";
  if (name == "kind") return "write step, evaluation or non_finite";
  if (name == "tail") return "write a whole number from 0 to 1000000";
  if (name == "limit" || name == "points") return "write a whole number from 1 to 100000";
  if (name == "after") return "write the sequence number of an event";
  return "docs/api.md says what it takes";
}

bool set_parameter(Call& call, const std::string& name, const std::string& text) {
  int64_t value = 0;
  if (name == "all") return parse_flag(text, call.all);
  if (name == "follow") return parse_flag(text, call.follow);
  if (name == "verify") return parse_flag(text, call.verify);
  if (name == "rows") return parse_flag(text, call.rows);
  if (name == "unique") return parse_flag(text, call.unique);
  if (name == "coarse") return parse_flag(text, call.metrics.coarse);
  if (name == "positions") return parse_flag(text, call.positions);
  if (name == "from") return parse_positions(text, call.from);
  if (name == "after") return parse_integer(text, 0, INT64_MAX, call.after);
  if (name == "limit") return parse_integer(text, 1, 100'000, call.limit);
  if (name == "tail") {
    if (!parse_integer(text, 0, 1'000'000, value)) return false;
    call.tail = value;
    return true;
  }
  if (name == "kind") {
    const auto kind = choice_from<wire::RecordKind>(text);
    call.metrics.kind = kind.value_or(call.metrics.kind);
    return kind.has_value();
  }
  if (name == "metrics") {
    constexpr size_t kMostMetrics = 16, kLongestName = 128;
    call.metrics.metrics = split(text, ',');
    return call.metrics.metrics.size() <= kMostMetrics &&
           std::all_of(call.metrics.metrics.begin(), call.metrics.metrics.end(),
                       [](const std::string& metric) {
                         return !metric.empty() && metric.size() <= kLongestName;
                       });
  }
  if (name == "points") return parse_integer(text, 1, 100'000, call.metrics.points);
  if (name == "first_step") return parse_integer(text, 0, INT64_MAX, call.metrics.first_step);
  if (name == "last_step") return parse_integer(text, 0, INT64_MAX, call.metrics.last_step);
  if (name == "run") {
    call.about = text;
    return text.size() <= kMaxPartText;
  }
  if (name == "since") {
    call.since = text;
    return is_utc_time(text);
  }
  if (name == "rank") {
    if (text == "all") return call.rank = -1, true;
    if (!parse_integer(text, 0, INT32_MAX, value)) return false;
    call.rank = static_cast<int>(value);
    return true;
  }
  if (name == "attempt") {
    if (!parse_integer(text, 1, INT32_MAX, value)) return false;
    call.attempt = static_cast<int>(value);
    return true;
  }
  return false;
}

} // namespace

const std::vector<RouteRow>& route_table() {
  // Routes about all runs would show other users' runs, so only administrators may use them. In
  // user mode every caller is one.
  using enum Need;
  static const std::vector<RouteRow> table = {
      {Endpoint::kVersion, kNothing, "", "GET", "/v1/version", {}},
      {Endpoint::kDaemon, kNothing, "", "GET", "/v1/daemon", {}},
      {Endpoint::kDaemonStop, kAdministrator, "daemon-stop", "POST", "/v1/daemon/stop", {}},
      {Endpoint::kAudit, kNothing, "", "GET", "/v1/audit", {"run", "tail"}},
      {Endpoint::kSubmit, kNothing, "submit", "POST", "/v1/runs", {}},
      {Endpoint::kRuns, kNothing, "", "GET", "/v1/runs", {"all", "rows"}},
      {Endpoint::kRun, kOwner, "", "GET", "/v1/runs/{run}", {"unique"}},
      {Endpoint::kRemove, kOwner, "remove", "DELETE", "/v1/runs/{run}", {}},
      {Endpoint::kStop, kOwner, "stop", "POST", "/v1/runs/{run}/stop", {}},
      {Endpoint::kCancel, kOwner, "cancel", "POST", "/v1/runs/{run}/cancel", {}},
      {Endpoint::kResume, kOwner, "resume", "POST", "/v1/runs/{run}/resume", {}},
      {Endpoint::kCheckpointNow, kOwner, "checkpoint", "POST", "/v1/runs/{run}/checkpoint", {}},
      {Endpoint::kSet, kOwner, "set", "POST", "/v1/runs/{run}/set", {}},
      {Endpoint::kSpec, kOwner, "", "GET", "/v1/runs/{run}/spec", {"attempt"}},
      {Endpoint::kCheckpoints, kOwner, "", "GET", "/v1/runs/{run}/checkpoints", {"verify"}},
      {Endpoint::kEvents,
       kOwner,
       "",
       "GET",
       "/v1/runs/{run}/events",
       {"after", "limit", "tail", "follow"}},
      {Endpoint::kEvents,
       kAdministrator,
       "",
       "GET",
       "/v1/events",
       {"after", "limit", "tail", "follow"}},
      {Endpoint::kLogs,
       kOwner,
       "",
       "GET",
       "/v1/runs/{run}/logs",
       {"rank", "attempt", "tail", "since", "follow", "from", "positions"}},
      {Endpoint::kMetrics,
       kOwner,
       "",
       "GET",
       "/v1/runs/{run}/metrics",
       {"kind", "metrics", "points", "first_step", "last_step", "coarse"}},
      {Endpoint::kFollow, kOwner, "", "GET", "/v1/runs/{run}/follow", {}},
      {Endpoint::kFollow, kAdministrator, "", "GET", "/v1/follow", {}},
      {Endpoint::kNodes, kNothing, "", "GET", "/v1/nodes", {"all"}},
      {Endpoint::kNode, kNothing, "", "GET", "/v1/nodes/{node}", {}},
      {Endpoint::kNodeToken, kAdministrator, "node-token", "POST", "/v1/node-tokens", {}},
      {Endpoint::kNodeRemove, kAdministrator, "node-remove", "DELETE", "/v1/nodes/{node}", {}},
      {Endpoint::kNodeDrain, kAdministrator, "node-drain", "POST", "/v1/nodes/{node}/drain", {}},
      {Endpoint::kNodeUndrain,
       kAdministrator,
       "node-undrain",
       "POST",
       "/v1/nodes/{node}/undrain",
       {}},
      {Endpoint::kDataPush, kAdministrator, "node-data", "POST", "/v1/nodes/{node}/data", {}},
      {Endpoint::kDataPushed, kNothing, "", "GET", "/v1/nodes/{node}/data", {}},
      {Endpoint::kNetworkProbe, kAdministrator, "node-probe", "POST", "/v1/nodes/{node}/probe", {}},
      {Endpoint::kNetworkProbed, kNothing, "", "GET", "/v1/nodes/{node}/probe", {}},
      {Endpoint::kGpus, kNothing, "", "GET", "/v1/gpus", {}},
      {Endpoint::kGpuRelease, kAdministrator, "gpu-release", "POST", "/v1/gpus/{gpu}/release", {}},
  };
  return table;
}

tl::expected<Call, RouteFailure> parse_call(const std::string& method, const net::Target& target) {
  const RouteRow* found = nullptr;
  std::string named, allowed;
  for (const RouteRow& row : route_table()) {
    std::string part;
    if (!matches(row.route, target.path, part)) continue;
    if (row.method == method) {
      found = &row;
      named = std::move(part);
      break;
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(row.method);
  }
  if (!found && !allowed.empty())
    return refuse(405, ErrorCode::kInvalidArgument, method + " does not apply to " + target.path,
                  "use " + allowed, allowed);
  if (!found)
    return refuse(404, ErrorCode::kNotFound, "no such path: " + target.path,
                  "the paths are in docs/api.md");
  const bool is_node = found->route.find("{node}") != std::string_view::npos;
  const bool is_gpu = found->route.find("{gpu}") != std::string_view::npos;
  if (named.size() > kMaxPartText)
    return refuse(400, ErrorCode::kInvalidArgument,
                  std::string("the ") +
                      (is_node  ? "node"
                       : is_gpu ? "GPU"
                                : "run") +
                      "'s name is too long");
  Call call;
  call.endpoint = found->endpoint;
  call.route = found->route;
  call.need = found->need;
  call.verb = found->verb;
  (is_node ? call.node : is_gpu ? call.gpu : call.run) = std::move(named);
  const std::vector<std::string> known(found->parameters.begin(), found->parameters.end());
  for (const auto& [name, value] : target.query) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const auto near = nearest_name(name, known);
      return refuse(400, ErrorCode::kInvalidArgument, "unknown parameter '" + name + "'",
                    near            ? "did you mean '" + *near + "'?"
                    : known.empty() ? "this path takes none"
                                    : "known: " + join(known, ", "));
    }
    if (!set_parameter(call, name, value))
      return refuse(400, ErrorCode::kInvalidArgument,
                    "parameter " + name + " has a bad value: '" + value + "'",
                    expected_value(name));
  }
  return call;
}

} // namespace nsa::api
