// Server and client over real sockets: the server on a thread of its own, the client here.
#include "common/base/file.h"
#include "common/net/http_client.h"
#include "common/net/http_server.h"
#include "common/net/unix_socket.h"

#include <arpa/inet.h>
#include <atomic>
#include <filesystem>
#include <future>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace nsa::net {
namespace {

using namespace std::chrono_literals;

constexpr auto kWaitLimit = 60s; // only what is broken takes so long

class Folder {
public:
  Folder() {
    char name[] = "/tmp/nsa-net-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
  std::string path_;
};

// Runs a handler on a unix socket until it goes away.
class Running {
public:
  explicit Running(Handler handler, HttpLimits limits = {}, HttpObserver observer = {})
      : path(folder / "d.sock") {
    auto made =
        HttpServer::listen_unix(loop, path, 0600, std::move(handler), limits, std::move(observer));
    EXPECT_TRUE(made) << made.error().what;
    server = std::move(*made);
    thread = std::thread([this] { loop.run(); });
  }
  ~Running() {
    loop.post([this] { server.reset(); });
    loop.stop();
    thread.join();
  }
  HttpClient client() {
    auto client = HttpClient::connect_unix(path);
    EXPECT_TRUE(client) << client.error().what;
    return std::move(*client);
  }
  // Runs `work` on the loop's thread and waits for it.
  template <class Work> auto on_loop(Work work) {
    std::promise<decltype(work())> result;
    loop.post([&] { result.set_value(work()); });
    return result.get_future().get();
  }

  Folder folder;
  std::string path;
  EventLoop loop;
  std::unique_ptr<HttpServer> server;
  std::thread thread;
};

Response text(std::string body) {
  Response response;
  response.body = std::move(body);
  return response;
}

std::string read_to_end(int fd) {
  std::string got;
  char chunk[4096];
  for (ssize_t n; (n = ::read(fd, chunk, sizeof chunk)) > 0;)
    got.append(chunk, static_cast<size_t>(n));
  return got;
}

std::string exchange_raw(const std::string& path, const std::string& bytes) {
  auto fd = connect_unix_socket(path);
  EXPECT_TRUE(fd);
  EXPECT_EQ(::send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return read_to_end(fd->get());
}

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
  // The path stays encoded, so that a slash inside a component is told from one between components.
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

TEST(Http, StreamsLinesUntilTheEnd) {
  Running running([](const Request&) {
    Response response;
    response.content_type = "application/x-ndjson";
    response.stream = [](std::shared_ptr<Stream> stream) {
      for (int i = 0; i < 1000; ++i)
        EXPECT_TRUE(stream->write("line " + std::to_string(i) + "\n"));
      stream->end();
      EXPECT_FALSE(stream->write("too late"));
    };
    return response;
  });
  auto client = running.client();
  int lines = 0;
  LineReader reader;
  reader.line = [&](std::string_view line) {
    EXPECT_EQ(line, "line " + std::to_string(lines));
    ++lines;
    return true;
  };
  const auto end = client.send_streaming({"GET", "/", {}, ""}, kWaitLimit, reader);
  ASSERT_TRUE(end) << end.error().what;
  EXPECT_EQ(end->end, StreamEnd::kEnded);
  EXPECT_EQ(lines, 1000);
}

TEST(Http, AProducerThatWaitsForRoomDeliversEverything) {
  HttpLimits limits;
  limits.stream_queue_bytes = 10'000;
  Running running(
      [](const Request&) {
        Response response;
        response.stream = [](std::shared_ptr<Stream> stream) {
          auto left = std::make_shared<int>(500);
          stream->when_drained([stream, left] {
            if (--*left == 0) return stream->end();
            EXPECT_TRUE(stream->write(std::string(7999, 'x') + "\n"));
          });
        };
        return response;
      },
      limits);
  auto client = running.client();
  int lines = 0;
  LineReader reader;
  reader.line = [&](std::string_view line) {
    lines += line.size() == 7999;
    return true;
  };
  ASSERT_TRUE(client.send_streaming({"GET", "/", {}, ""}, kWaitLimit, reader));
  EXPECT_EQ(lines, 499);
}

TEST(Http, ASlowReaderIsCutOffWithAReason) {
  HttpLimits limits;
  limits.stream_queue_bytes = 100'000;
  std::promise<void> closed;
  std::shared_ptr<Stream> kept;
  Timer producer;
  size_t most = 0;
  Running* self = nullptr;
  Running running(
      [&](const Request&) {
        Response response;
        response.content_type = "application/x-ndjson";
        response.stream = [&](std::shared_ptr<Stream> stream) {
          kept = std::move(stream);
          kept->when_closed([&] { closed.set_value(); });
          producer = self->loop.every(1ms, [&] {
            for (int i = 0; i < 10; ++i)
              if (!kept->write(std::string(20'000, 'y') + "\n")) return producer.reset();
            most = std::max(most, kept->queued());
          });
        };
        return response;
      },
      limits);
  self = &running;
  auto fd = connect_unix_socket(running.path);
  ASSERT_TRUE(fd);
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_GT(::send(fd->get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  ASSERT_EQ(closed.get_future().wait_for(kWaitLimit), std::future_status::ready);
  const std::string got = read_to_end(fd->get()); // only now
  EXPECT_NE(got.find(R"({"type":"cut-off","what":"the reader was too slow)"), std::string::npos);
  EXPECT_EQ(got.substr(got.size() - 5), "0\r\n\r\n"); // whole: framing survived the cut
  running.on_loop([&] {
    EXPECT_LE(most, 2 * limits.stream_queue_bytes + 1000);
    kept.reset();
    return 0;
  });
}

TEST(Http, AReaderThatLeavesIsNoticed) {
  std::promise<void> closed;
  std::shared_ptr<Stream> kept;
  Running running([&](const Request&) {
    Response response;
    response.stream = [&](std::shared_ptr<Stream> stream) {
      kept = std::move(stream);
      kept->when_closed([&] { closed.set_value(); });
      kept->write("first\n");
    };
    return response;
  });
  auto client = running.client();
  LineReader reader;
  reader.line = [](std::string_view) { return false; };
  const auto end = client.send_streaming({"GET", "/", {}, ""}, kWaitLimit, reader);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->end, StreamEnd::kStopped);
  {
    const HttpClient gone = std::move(client);
  }
  EXPECT_EQ(closed.get_future().wait_for(kWaitLimit), std::future_status::ready);
  running.on_loop([&] {
    EXPECT_FALSE(kept->is_open());
    kept.reset();
    return 0;
  });
}

TEST(Http, AReaderCanBeInterruptedAndTicks) {
  std::shared_ptr<Stream> kept;
  Running running([&](const Request&) {
    Response response;
    response.stream = [&](std::shared_ptr<Stream> stream) { kept = std::move(stream); };
    return response;
  });
  auto client = running.client();
  const UniqueFd interrupt(::eventfd(0, EFD_CLOEXEC));
  int ticks = 0;
  LineReader reader;
  reader.line = [](std::string_view) { return true; };
  reader.tick_interval = 5ms;
  reader.tick = [&] {
    if (++ticks == 3) ::eventfd_write(interrupt.get(), 1);
    return true;
  };
  reader.interrupt_fd = interrupt.get();
  const auto end = client.send_streaming({"GET", "/", {}, ""}, kWaitLimit, reader);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->end, StreamEnd::kInterrupted);
  EXPECT_EQ(ticks, 3);
  running.on_loop([&] {
    kept.reset();
    return 0;
  });
}

TEST(Http, ErrorsOfAStreamedRequestComeWithTheirBody) {
  Running running([](const Request&) {
    Response response = text(R"({"code":"not-found"})");
    response.status = 404;
    return response;
  });
  auto client = running.client();
  LineReader reader;
  reader.line = [](std::string_view) {
    ADD_FAILURE() << "no lines come with an error";
    return true;
  };
  const auto end = client.send_streaming({"GET", "/", {}, ""}, kWaitLimit, reader);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->response.status, 404);
  EXPECT_EQ(end->response.body, R"({"code":"not-found"})");
}

TEST(Http, ADaemonThatDiesInTheMiddleIsSaid) {
  Folder folder;
  auto listener = listen_unix_socket(folder / "d.sock", 0600);
  ASSERT_TRUE(listener);
  std::thread half([&] {
    const UniqueFd peer(::accept(listener->get(), nullptr, nullptr));
    char chunk[4096];
    EXPECT_GT(::read(peer.get(), chunk, sizeof chunk), 0);
    EXPECT_GT(::write(peer.get(), "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", 42), 0);
  });
  auto client = HttpClient::connect_unix(folder / "d.sock");
  ASSERT_TRUE(client);
  const auto answer = client->send({"GET", "/", {}, ""}, kWaitLimit);
  half.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
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
  } // closed: the file stays, as after kill -9
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

TEST(HttpServer, AnAnswerMayComeLaterWithItsOwnStatusAndOthersGoOnMeanwhile) {
  std::function<void(Response)> take;
  std::atomic<bool> asked = false;
  std::vector<std::string> routes;
  Running running(
      [&](const Request& request) {
        Response response = text("at once");
        response.route = request.path;
        if (request.path == "/later")
          response.later = [&](std::function<void(Response)> give) {
            take = std::move(give);
            asked = true;
          };
        return response;
      },
      {}, [&](const HttpRecord& record) { routes.push_back(record.route); });
  auto later = std::async(std::launch::async, [&] {
    auto client = running.client();
    const auto first = client.send({"GET", "/later", {}, ""}, kWaitLimit);
    const auto second = client.send({"GET", "/now", {}, ""}, kWaitLimit); // the connection goes on
    return std::pair(first ? first->status : 0, second ? second->body : "");
  });
  while (!asked)
    std::this_thread::sleep_for(1ms);
  auto other = running.client();
  EXPECT_EQ(other.send({"GET", "/now", {}, ""}, kWaitLimit)->body, "at once");
  running.on_loop([&] {
    Response response = text("gone");
    response.status = 404;
    take(std::move(response));
    return 0;
  });
  EXPECT_EQ(later.get(), std::pair(404, std::string("at once")));
  EXPECT_EQ(running.on_loop([&] { return routes; }),
            (std::vector<std::string>{"/now", "/later", "/now"}));
}

TEST(HttpServer, AnAnswerForAClientThatHasLeftIsDropped) {
  std::function<void(Response)> take;
  std::atomic<bool> asked = false;
  Running running([&](const Request&) {
    Response response;
    response.later = [&](std::function<void(Response)> give) {
      take = std::move(give);
      asked = true;
    };
    return response;
  });
  {
    auto fd = connect_unix_socket(running.path);
    ASSERT_TRUE(fd);
    ASSERT_TRUE(write_all(fd->get(), "GET /x HTTP/1.1\r\n\r\n", 19));
    while (!asked)
      std::this_thread::sleep_for(1ms);
  }
  running.on_loop([&] {
    take(text("for nobody"));
    take = nullptr;
    return 0;
  });
  for (int i = 0; i < 12'000 && running.on_loop([&] { return running.server->connections(); }); ++i)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(running.on_loop([&] { return running.server->connections(); }), 0U);
}

} // namespace
} // namespace nsa::net
