#include "common/base/file.h"
#include "daemon/api/route.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <map>

namespace nsa::api {
namespace {

tl::expected<Call, RouteFailure> parse(const std::string& method, const std::string& target) {
  const auto parsed = net::parse_target(target);
  EXPECT_TRUE(parsed) << target;
  return parse_call(method, *parsed);
}

TEST(Route, FindsTheEndpointAndTheRun) {
  const auto call = parse("GET", "/v1/runs/kabcd/logs?rank=3&attempt=2&tail=10&follow");
  ASSERT_TRUE(call);
  EXPECT_EQ(call->endpoint, Endpoint::kLogs);
  EXPECT_EQ(call->route, "/v1/runs/{run}/logs");
  EXPECT_EQ(call->run, "kabcd");
  EXPECT_EQ(call->rank, 3);
  EXPECT_EQ(call->attempt, 2);
  EXPECT_EQ(call->tail, 10);
  EXPECT_TRUE(call->follow);
  EXPECT_EQ(parse("GET", "/v1/runs/%40last")->run, "@last");
  EXPECT_EQ(parse("GET", "/v1/runs/a%2Fb%3Fc/events")->run, "a/b?c")
      << "an encoded slash parts nothing";
  EXPECT_EQ(parse("GET", "/v1/runs")->endpoint, Endpoint::kRuns);
  EXPECT_EQ(parse("POST", "/v1/runs")->endpoint, Endpoint::kSubmit);
  EXPECT_EQ(parse("DELETE", "/v1/runs/x")->endpoint, Endpoint::kRemove);
  EXPECT_EQ(parse("GET", "/v1/events")->run, "");
}

TEST(Route, EveryRowIsReachedByItsOwnPath) {
  for (const RouteRow& row : route_table()) {
    std::string path(row.route);
    if (const size_t at = path.find("{run}"); at != std::string::npos) path.replace(at, 5, "x");
    const auto call = parse(std::string(row.method), path);
    ASSERT_TRUE(call) << row.method << " " << path;
    EXPECT_EQ(call->endpoint, row.endpoint) << path;
    EXPECT_EQ(call->route, row.route);
    for (const std::string_view parameter : row.parameters) {
      static const std::map<std::string_view, std::string> good = {
          {"since", "2026-01-31T09:12:01.5Z"},
          {"rank", "0"},
          {"attempt", "1"},
          {"after", "7"},
          {"limit", "5"},
          {"tail", "0"},
          {"kind", "evaluation"},
          {"from", "1.0.5f.9c01be44.1a2b,1.1.0.0.0"}};
      const auto value = good.find(parameter);
      EXPECT_TRUE(parse(std::string(row.method), path + "?" + std::string(parameter) + "=" +
                                                     (value == good.end() ? "1" : value->second)))
          << path << " " << parameter;
    }
  }
}

TEST(Route, RefusesOtherMethodsAndPaths) {
  const auto method = parse("PUT", "/v1/runs/x");
  ASSERT_FALSE(method);
  EXPECT_EQ(method.error().status, 405);
  EXPECT_EQ(method.error().allowed_methods, "GET, DELETE");
  for (const char* path : {"/", "/v1", "/v2/runs", "/v1/runs/", "/v1/runs//logs", "/v1/runs/x/",
                           "/v1/runs/x/logs/y", "/v1/runs/x/nothing", "/v1/run"}) {
    const auto call = parse("GET", path);
    ASSERT_FALSE(call) << path;
    EXPECT_EQ(call.error().status, 404) << path;
  }
  EXPECT_EQ(parse("GET", "/v1/runs/" + std::string(300, 'x')).error().status, 400);
}

TEST(Route, RefusesUnknownAndBadParameters) {
  const auto typo = parse("GET", "/v1/runs/x/logs?folow");
  ASSERT_FALSE(typo);
  EXPECT_EQ(typo.error().status, 400);
  EXPECT_EQ(typo.error().error.next, "did you mean 'follow'?");
  for (const char* query :
       {"rank=-1", "rank=", "rank=1x", "rank=99999999999", "attempt=0", "tail=-1", "follow=maybe",
        "from=", "from=1.0.0.0.0,", "since=yesterday", "since=2026-01-31T09:12:01",
        "since=2026-01-31T09:12:01.Z", "since=2026-01-31T09:12:01%2B01:00"})
    EXPECT_EQ(parse("GET", std::string("/v1/runs/x/logs?") + query).error().status, 400) << query;
  EXPECT_FALSE(parse("GET", "/v1/events?limit=0"));
  EXPECT_FALSE(parse("GET", "/v1/version?x=1"));
}

TEST(Route, TheDocumentedRoutesAreTheseRoutes) {
  const auto page = read_file(test::source_folder() + "/docs/api.md");
  ASSERT_TRUE(page) << page.error().what;
  for (const RouteRow& row : route_table()) {
    const std::string title = "`" + std::string(row.method) + " " + std::string(row.route);
    EXPECT_NE(page->find(title), std::string::npos) << title << "` is not in docs/api.md";
    for (const std::string_view parameter : row.parameters)
      EXPECT_NE(page->find("`" + std::string(parameter)), std::string::npos) << parameter;
  }
}

} // namespace
} // namespace nsa::api
