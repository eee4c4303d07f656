// Which requests the server of `nsactl ui` answers. The filter is tested with values and over a
// real port.
#include "cli/ui/page_server.h"
#include "cli/ui/request_filter.h"
#include "common/base/unique_fd.h"
#include "tests/unit/cli/commands_fixture.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace nsa::ui {
namespace {

const std::string kToken = "00112233445566778899aabbccddeeff";

net::Request request_of(const std::string& target, const std::string& method = "GET") {
  net::Request request;
  request.method = method;
  auto parsed = net::parse_target(target);
  EXPECT_TRUE(parsed) << target;
  if (parsed) {
    request.path = parsed->path;
    request.query = parsed->query;
  }
  request.header = {{"host", "127.0.0.1:8123"}, {"cookie", "nsa-ui-8123=" + kToken}};
  if (method != "GET") request.header["origin"] = "http://127.0.0.1:8123";
  return request;
}

Errand judge(const net::Request& request, bool allow_actions = false) {
  return RequestFilter({kToken, 8123, allow_actions}).judge(request);
}

int status_of(const Errand& errand) {
  const auto* response = std::get_if<net::Response>(&errand);
  return response ? response->status : 0;
}
std::string target_of(const Errand& errand) {
  const auto* forward = std::get_if<Forward>(&errand);
  return forward ? forward->request.method + " " + forward->request.target : "";
}

TEST(RequestFilter, TheTokenOfTheUrlBecomesACookie) {
  net::Request visit = request_of("/?token=" + kToken);
  visit.header.erase("cookie");
  const Errand errand = judge(visit);
  ASSERT_EQ(status_of(errand), 303);
  const auto& header = std::get<net::Response>(errand).header;
  EXPECT_EQ(header[0], std::pair(std::string("Location"), std::string("/")));
  EXPECT_EQ(header[1].second, "nsa-ui-8123=" + kToken + "; Path=/; HttpOnly; SameSite=Strict");
}

TEST(RequestFilter, NothingIsToldWithoutTheToken) {
  for (const char* target : {"/", "/app.js", "/v1/runs", "/ui/settings", "/nothing"}) {
    net::Request request = request_of(target);
    request.header.erase("cookie");
    EXPECT_EQ(status_of(judge(request)), 401) << target;
    request.header["cookie"] = "nsa-ui-8123=" + std::string(32, '0');
    EXPECT_EQ(status_of(judge(request)), 401) << target;
    request.header["cookie"] = "nsa-ui-8124=" + kToken; // the cookie of another server
    EXPECT_EQ(status_of(judge(request)), 401) << target;
    request.header["cookie"] = "nsa-ui-8123="; // an empty token is no valid prefix
    EXPECT_EQ(status_of(judge(request)), 401) << target;
    request.header["cookie"] = "theme=dark; nsa-ui-8123=" + kToken;
    EXPECT_NE(status_of(judge(request)), 401) << target;
  }
  EXPECT_EQ(status_of(judge(request_of("/?token=" + std::string(32, '0')))), 401);
  EXPECT_EQ(status_of(judge(request_of("/v1/runs?token=" + kToken))), 401);
}

TEST(RequestFilter, OnlyLoopbackIsAHost) {
  for (const char* host : {"127.0.0.1:8123", "localhost:9000", "[::1]:8123", "LOCALHOST"}) {
    net::Request request = request_of("/");
    request.header["host"] = host;
    EXPECT_TRUE(std::holds_alternative<PageFile>(judge(request))) << host;
  }
  for (const char* host : {"evil.example", "127.0.0.1.evil.example:8123", "localhost.evil:8123", "",
                           "10.0.0.1:8123"}) {
    net::Request request = request_of("/");
    request.header["host"] = host;
    EXPECT_EQ(status_of(judge(request)), 421) << host;
  }
  net::Request none = request_of("/");
  none.header.erase("host");
  EXPECT_EQ(status_of(judge(none)), 421);
}

TEST(RequestFilter, AnotherOriginIsRefused) {
  net::Request read = request_of("/v1/runs");
  read.header["origin"] = "http://127.0.0.1:8123";
  EXPECT_EQ(target_of(judge(read)), "GET /v1/runs");
  for (const char* origin : {"http://evil.example", "null", "http://127.0.0.1:9999",
                             "https://127.0.0.1:8123", "http://localhost:8123"}) {
    read.header["origin"] = origin;
    EXPECT_EQ(status_of(judge(read)), 403) << origin;
  }
  net::Request action = request_of("/v1/runs/k3fm2/stop", "POST");
  EXPECT_EQ(target_of(judge(action, true)), "POST /v1/runs/k3fm2/stop");
  action.header.erase("origin"); // a browser always sends it
  EXPECT_EQ(status_of(judge(action, true)), 403);
}

TEST(RequestFilter, ReadsOfTheListAreForwarded) {
  EXPECT_EQ(target_of(judge(request_of("/v1/runs?all=&rows="))), "GET /v1/runs?all&rows");
  EXPECT_EQ(target_of(judge(request_of("/v1/runs/%40last/metrics?metrics=loss,a.b&points=900"))),
            "GET /v1/runs/%40last/metrics?metrics=loss%2Ca.b&points=900");
  const Errand errand = judge(request_of("/v1/daemon"));
  EXPECT_EQ(std::get<Forward>(errand).request.header[0].first, "Nsa-Api");
  // Requests that would stay open for long, are costly, or are not for a page.
  for (const char* target : {"/v1/runs/k3fm2/logs?follow", "/v1/runs/k3fm2/checkpoints?verify"})
    EXPECT_EQ(status_of(judge(request_of(target))), 400) << target;
  for (const char* target : {"/v1/runs/k3fm2/follow", "/v1/audit", "/v1/daemon/stop", "/metrics"})
    EXPECT_EQ(target_of(judge(request_of(target), true)), "") << target;
}

TEST(RequestFilter, NoPathLeavesTheList) {
  for (const char* target :
       {"/v1/runs/../daemon/stop", "/v1/runs/%2e%2e/events", "/v1/runs/a%2Fb", "/v1/runs/./logs",
        "/v1/runs//logs", "/v1/runs/a%20b", "/v1/runs/a%0d%0aX", "/v1/runs/a/b/logs"}) {
    const Errand errand = judge(request_of(target), true);
    EXPECT_EQ(target_of(errand), "") << target;
  }
  // A file is found by its name, and never in a folder.
  for (const char* target : {"/../../etc/passwd", "/%2e%2e/passwd", "//etc/passwd"}) {
    const Errand errand = judge(request_of(target));
    ASSERT_TRUE(std::holds_alternative<PageFile>(errand)) << target;
    EXPECT_EQ(std::get<PageFile>(errand).name, std::string(target).substr(1));
  }
}

TEST(RequestFilter, OtherMethodsAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
    for (const char* target : {"/", "/v1/runs", "/v1/runs/k3fm2", "/ui/settings"})
      EXPECT_EQ(status_of(judge(request_of(target, method), true)), 405) << method << target;
}

TEST(RequestFilter, ActionsNeedTheirFlag) {
  for (const char* verb : {"stop", "cancel", "resume", "checkpoint"}) {
    const std::string target = std::string("/v1/runs/k3fm2/") + verb;
    EXPECT_EQ(status_of(judge(request_of(target, "POST"))), 403) << verb;
    EXPECT_EQ(target_of(judge(request_of(target, "POST"), true)), "POST " + target);
    EXPECT_EQ(status_of(judge(request_of(target), true)), 405) << verb;
  }
}

TEST(RequestFilter, EvidenceIsAskedForByNumber) {
  const Errand errand = judge(request_of("/ui/evidence?run=k3fm2&hang=1"));
  ASSERT_TRUE(std::holds_alternative<HangEvidence>(errand));
  EXPECT_EQ(std::get<HangEvidence>(errand).hang, 1u);
  for (const char* query : {"", "?run=k3fm2", "?run=k3fm2&hang=-1", "?run=k3fm2&hang=1x",
                            "?run=../x&hang=0", "?run=k3fm2&hang=99999999999999999999999"})
    EXPECT_EQ(status_of(judge(request_of(std::string("/ui/evidence") + query))), 400) << query;
}

// Returns the whole answer to one request over TCP.
std::string exchange(uint16_t port, const std::string& text) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return "";
  if (::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char bytes[4096];
  for (ssize_t got; (got = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(got));
  return answer;
}

class UiServer : public cli::Commands {
protected:
  void SetUp() override {
    auto made = PageServer::start(loop, {daemon.socket, kToken, 0, false});
    ASSERT_TRUE(made) << made.error().what;
    server = std::move(*made);
    thread = std::thread([this] { loop.run(); });
  }
  void TearDown() override {
    if (!thread.joinable()) return;
    loop.stop();
    thread.join();
  }
  std::string get(const std::string& target, const std::string& method = "GET") {
    const std::string port = std::to_string(server->port());
    return exchange(server->port(), method + " " + target + " HTTP/1.1\r\nHost: 127.0.0.1:" + port +
                                        "\r\nCookie: nsa-ui-" + port + "=" + kToken +
                                        "\r\nOrigin: http://127.0.0.1:" + port +
                                        "\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
  }
  net::EventLoop loop;
  std::unique_ptr<PageServer> server;
  std::thread thread;
};

TEST_F(UiServer, ServesThePageUnderAStrictPolicy) {
  const std::string page = get("/");
  EXPECT_TRUE(page.starts_with("HTTP/1.1 200 ")) << page.substr(0, 300);
  for (const char* part : {"Content-Type: text/html", "default-src 'none'", "script-src 'self'",
                           "nosniff", "no-referrer", "<main id=\"main\""})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_NE(get("/app.js").find("text/javascript"), std::string::npos);
  EXPECT_NE(get("/dygraph.min.js").find("MIT"), std::string::npos);
  EXPECT_TRUE(get("/../index.html").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(get("/v1/nothing").starts_with("HTTP/1.1 404 "));
}

TEST_F(UiServer, PassesOnWhatNsadAnswers) {
  add_run("kaaaa", "running");
  const std::string run = get("/v1/runs/kaaaa");
  EXPECT_TRUE(run.starts_with("HTTP/1.1 200 ")) << run;
  EXPECT_NE(run.find("\"state\":\"running\""), std::string::npos) << run;
  const std::string unknown = get("/v1/runs/nobody");
  EXPECT_TRUE(unknown.starts_with("HTTP/1.1 404 ")) << unknown;
  EXPECT_NE(unknown.find("\"what\""), std::string::npos);
  EXPECT_TRUE(get("/v1/runs/kaaaa/stop", "POST").starts_with("HTTP/1.1 403 "));
  EXPECT_TRUE(get("/ui/evidence?run=kaaaa&hang=0").starts_with("HTTP/1.1 404 "));
}

TEST_F(UiServer, SaysThatNsadIsGone) {
  daemon.on_loop([this] {
    daemon.server.reset();
    return 0;
  });
  const std::string answer = get("/v1/runs");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 502 ")) << answer;
  EXPECT_NE(answer.find(daemon.socket), std::string::npos) << answer;
}

TEST_F(UiServer, APortInUseIsAClearError) {
  const std::string port = std::to_string(server->port());
  const cli::Outcome outcome = run({"ui", "--port", port});
  EXPECT_EQ(outcome.exit, 1);
  EXPECT_NE(outcome.err.find("cannot listen on 127.0.0.1:" + port), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("in use"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("nsactl ui"), std::string::npos) << outcome.err;
  EXPECT_EQ(run({"ui", "--port", "70000"}).exit, 2);
}

} // namespace
} // namespace nsa::ui
