#include "daemon/api/metrics_route.h"

#include <gtest/gtest.h>

namespace nsa::api {
namespace {

net::Request scrape(const std::string& host = "127.0.0.1:9464") {
  net::Request request;
  request.method = "GET";
  request.path = "/metrics";
  if (!host.empty()) request.header["host"] = host;
  return request;
}

net::Handler handler_with(MetricsGuard guard = {}) {
  return metrics_handler(
      [] {
        metrics::Snapshot snapshot;
        snapshot.daemon.version = "9.9";
        return snapshot;
      },
      std::move(guard));
}

TEST(MetricsRoute, ServesTextOnOnePathOnly) {
  const auto handler = handler_with();
  net::Request request = scrape();
  const auto answer = handler(request);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(answer.body.find("nsad_build_info{version=\"9.9\""), std::string::npos);
  request.path = "/v1/runs";
  EXPECT_EQ(handler(request).status, 404);
  request.path = "/metrics";
  request.method = "POST";
  EXPECT_EQ(handler(request).status, 405);
}

TEST(MetricsRoute, AnswersOnlyWhoAsksForLoopback) {
  const auto handler = handler_with();
  for (const char* host : {"127.0.0.1", "127.0.0.1:1", "127.8.9.1:9464", "localhost",
                           "LocalHost:80", "[::1]", "[::1]:9464"})
    EXPECT_EQ(handler(scrape(host)).status, 200) << host;
  for (const char* host : {"", "attacker.example", "attacker.example:9464", "127.0.0.1.example",
                           "localhost.example:9464", "::1", "[::2]:9464", "10.0.0.1:9464"}) {
    const auto refused = handler(scrape(host));
    EXPECT_EQ(refused.status, 421) << host;
    EXPECT_EQ(refused.body.find("nsad_"), std::string::npos) << host;
  }
  EXPECT_EQ(handler_with({.check_host = false, .token = ""})(scrape("any")).status, 200);
}

TEST(MetricsRoute, WantsTheTokenWhereThereIsOne) {
  const auto handler = handler_with({.check_host = true, .token = "0123456789abcdef"});
  net::Request request = scrape();
  const auto refused = handler(request);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header.at(0).first, "WWW-Authenticate");
  for (const char* wrong : {"Bearer 0123456789abcdeF", "Bearer 0123456789abcde", "0123456789abcdef",
                            "Basic 0123456789abcdef", "Bearer 0123456789abcdef0", ""}) {
    request.header["authorization"] = wrong;
    EXPECT_EQ(handler(request).status, 401) << wrong;
  }
  request.header["authorization"] = "Bearer 0123456789abcdef";
  EXPECT_EQ(handler(request).status, 200);
}

} // namespace
} // namespace nsa::api
