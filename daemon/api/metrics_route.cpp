#include "daemon/api/metrics_route.h"

#include "common/net/guards.h"
#include "daemon/metrics/render.h"

#include <string_view>

namespace nsa::api {

namespace {

bool carries(const net::Request& request, const std::string& token) {
  const auto header = request.header.find("authorization");
  return header != request.header.end() && net::is_same_secret(header->second, "Bearer " + token);
}

net::Response refuse(int status, std::string_view what) {
  net::Response response;
  response.status = status;
  response.route = "invalid";
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::string(what) + "\n";
  return response;
}

} // namespace

net::Handler metrics_handler(std::function<metrics::Snapshot()> snapshot, MetricsGuard guard) {
  return [snapshot = std::move(snapshot), guard = std::move(guard)](const net::Request& request) {
    const auto host = request.header.find("host");
    if (guard.check_host && (host == request.header.end() || !net::names_loopback(host->second)))
      return refuse(421, "ask for 127.0.0.1, localhost or [::1]");
    if (!guard.token.empty() && !carries(request, guard.token)) {
      net::Response response = refuse(401, "the token of metrics.token_file is wanted");
      response.header.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
    if (request.path != "/metrics") return refuse(404, "only /metrics is here");
    net::Response response;
    response.route = "/metrics";
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    if (request.method != "GET") {
      response.status = 405;
      response.header.emplace_back("Allow", "GET");
    } else {
      response.body = metrics::render(snapshot());
    }
    return response;
  };
}

net::HttpLimits metrics_limits() {
  net::HttpLimits limits;
  limits.header_bytes = 8 << 10;
  limits.body_bytes = 1 << 10;
  limits.connections = limits.connections_of_one = 64;
  limits.request_timeout = std::chrono::seconds(5);
  limits.requests_per_second = 20;
  limits.request_burst = 100;
  return limits;
}

} // namespace nsa::api
