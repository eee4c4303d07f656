// Requests, their answers, and the sockets that carry them.
#include "tests/unit/net/http_fixture.h"

#include "common/base/file.h"

#include <arpa/inet.h>
#include <atomic>
#include <sys/stat.h>

namespace nsa::net {
namespace {

TEST(Target, DecodesPathAndQuery) {
  const auto target = parse_target("/v1/runs/a%20b?rank=1&follow&name=x%3Dy+z&rank=2");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->path, "/v1/runs/a%20b");
  EXPECT_EQ(decode_component("a%2Fb%20+"), "a/b +");
  EXPECT_FALSE(decode_component("a%2"));
  EXPECT_FALSE(decode_component("a%00"));
  EXPECT_EQ(target->query.at("rank"), "2");
  EXPECT_EQ(target->query.at("follow"), "");
  EXPECT_EQ(target->query.at("name"), "x=y z");
  EXPECT_FALSE(parse_target(""));
  EXPECT_FALSE(parse_target("v1"));
  EXPECT_FALSE(parse_target("/a%2"));
  EXPECT_FALSE(parse_target("/a%zz"));
  EXPECT_FALSE(parse_target("/a%00b"));
  EXPECT_FALSE(parse_target("/a?x=%0"));
  // The path stays encoded, so a slash inside a component differs from one between components.
  EXPECT_EQ(parse_target("/" + encode_component("a/b?c&d=é%"))->path,
            "/" + encode_component("a/b?c&d=é%"));
  EXPECT_EQ(decode_component(encode_component("a/b?c&d=é%")), "a/b?c&d=é%");
}

TEST(Http, AnswersAndKnowsTheCaller) {
  Peer peer;
  Running running([&](const Request& request) {
    peer = request.peer;
    return text(request.method + " " + request.path + " " + request.query.at("q") + " " +
                request.header.at("x-test") + " " + request.body);
  });
  auto client = running.client();
  const auto answer = client.send(
      {"POST", "/echo?q=7", {{"X-Test", "yes"}}, std::string(100'000, 'b')}, kWaitLimit);
  ASSERT_TRUE(answer) << answer.error().what;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "POST /echo 7 yes " + std::string(100'000, 'b'));
  EXPECT_TRUE(peer.is_local_user);
  EXPECT_EQ(peer.uid, ::getuid());
  EXPECT_EQ(peer.pid, ::getpid());
}

TEST(Http, OneConnectionCarriesManyRequests) {
  std::atomic<int> served = 0;
  Running running([&](const Request&) { return text(std::to_string(++served)); });
  auto client = running.client();
  for (int i = 1; i <= 20; ++i) {
    const auto answer = client.send({"GET", "/", {}, ""}, kWaitLimit);
    ASSERT_TRUE(answer) << answer.error().what;
    EXPECT_EQ(answer->body, std::to_string(i));
  }
  EXPECT_EQ(running.on_loop([&] { return running.server->connections(); }), 1u);
}

TEST(Http, SocketHasItsModeAndIsRemovedAtTheEnd) {
  std::string path;
  {
    Running running([](const Request&) { return text("ok"); });
    path = running.path;
    struct stat info{};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Http, RefusesWhatIsTooLargeOrMalformed) {
  HttpLimits limits;
  limits.body_bytes = 1000;
  limits.header_bytes = 2000;
  std::atomic<int> handled = 0;
  Running running(
      [&](const Request&) {
        ++handled;
        return text("ok");
      },
      limits);
  EXPECT_EQ(
      exchange_raw(running.path, "POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n").substr(0, 12),
      "HTTP/1.1 413");
  EXPECT_EQ(
      exchange_raw(running.path, "GET / HTTP/1.1\r\nX: " + std::string(3000, 'x') + "\r\n\r\n")
          .substr(0, 12),
      "HTTP/1.1 431");
  EXPECT_EQ(exchange_raw(running.path, "nonsense\r\n\r\n").substr(0, 12), "HTTP/1.1 400");
  EXPECT_EQ(
      exchange_raw(running.path, "GET /%zz HTTP/1.1\r\nConnection: close\r\n\r\n").substr(0, 12),
      "HTTP/1.1 400");
  EXPECT_EQ(handled, 0);
}

TEST(Http, ContinuesWhenAsked) {
  Running running([](const Request& request) { return text(request.body); });
  const std::string answer =
      exchange_raw(running.path, "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: "
                                 "3\r\nConnection: close\r\n\r\nabc");
  EXPECT_EQ(answer.rfind("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", 0), 0u) << answer;
  EXPECT_EQ(answer.substr(answer.size() - 3), "abc");
}

TEST(Http, ARequestThatNeverEndsIsDropped) {
  HttpLimits limits;
  limits.request_timeout = 100ms;
  Running running([](const Request&) { return text("ok"); }, limits);
  EXPECT_EQ(exchange_raw(running.path, "GET / HTTP/1.1\r\nX-Slow: "), "");
}

TEST(Http, AHandlerThatThrowsIsAnError500) {
  Running running([](const Request&) -> Response { throw std::runtime_error("boom"); });
  auto client = running.client();
  const auto answer = client.send({"GET", "/", {}, ""}, kWaitLimit);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 500);
  EXPECT_NE(answer->body.find("boom"), std::string::npos);
}

TEST(Http, ADaemonThatDoesNotAnswerIsGivenUp) {
  Folder folder;
  auto listener = listen_unix_socket(folder / "d.sock", 0600);
  ASSERT_TRUE(listener);
  auto client = HttpClient::connect_unix(folder / "d.sock");
  ASSERT_TRUE(client);
  const auto answer = client->send({"GET", "/", {}, ""}, 50ms);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kExhausted);
}

TEST(UnixSocket, ReplacesAStaleFileButNotALiveListener) {
  Folder folder;
  const std::string path = folder / "d.sock";
  {
    ASSERT_TRUE(listen_unix_socket(path, 0600));
  } // closed, but the file stays, as after kill -9
  EXPECT_TRUE(std::filesystem::exists(path));
  const auto gone = connect_unix_socket(path);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kUnavailable);
  const auto live = listen_unix_socket(path, 0600);
  ASSERT_TRUE(live) << live.error().what;
  const auto second = listen_unix_socket(path, 0600);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  ASSERT_TRUE(write_file_atomic(folder / "file", "x"));
  EXPECT_FALSE(listen_unix_socket(folder / "file", 0600)) << "a plain file was replaced";
}

TEST(UnixSocket, TakesPathsLongerThanAnAddress) {
  Folder folder;
  const std::string deep = folder / std::string(150, 'd');
  ASSERT_TRUE(make_folder(deep));
  const auto listener = listen_unix_socket(deep + "/d.sock", 0600);
  ASSERT_TRUE(listener) << listener.error().what;
  EXPECT_TRUE(connect_unix_socket(deep + "/d.sock"));
}

TEST(Http, TcpIsForLoopbackOnly) {
  EventLoop loop;
  const auto handler = [](const Request& request) {
    EXPECT_FALSE(request.peer.is_local_user);
    return text("ok");
  };
  const auto open = HttpServer::listen_tcp(loop, "0.0.0.0", 0, handler);
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(HttpServer::listen_tcp(loop, "localhost", 0, handler));
  const auto server = HttpServer::listen_tcp(loop, "127.0.0.1", 0, handler);
  ASSERT_TRUE(server) << server.error().what;
  ASSERT_GT((*server)->port(), 0);
  EXPECT_FALSE(HttpServer::listen_tcp(loop, "127.0.0.1", (*server)->port(), handler));
  std::string got;
  std::thread reader([&, port = (*server)->port()] {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_GT(::send(fd.get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 0);
    got = read_to_end(fd.get());
    loop.stop();
  });
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  reader.join();
  EXPECT_EQ(got.substr(0, 15), "HTTP/1.1 200 OK");
}

TEST(Http, ObserverSeesRoutesAndStatuses) {
  std::promise<HttpRecord> seen;
  Running running(
      [](const Request&) {
        Response response = text("x");
        response.status = 404;
        response.route = "/v1/runs/{id}";
        return response;
      },
      {}, [&](const HttpRecord& record) { seen.set_value(record); });
  auto client = running.client();
  ASSERT_TRUE(client.send({"GET", "/v1/runs/none", {}, ""}, kWaitLimit));
  const HttpRecord record = seen.get_future().get();
  EXPECT_EQ(record.route, "/v1/runs/{id}");
  EXPECT_EQ(record.method, "GET");
  EXPECT_EQ(record.status, 404);
  EXPECT_GE(record.seconds, 0);
}

} // namespace
} // namespace nsa::net
