// Answers that take time: streams of lines, and answers that come later.
#include "tests/unit/net/http_fixture.h"

#include "common/base/file.h"

#include <atomic>
#include <sys/eventfd.h>

namespace nsa::net {
namespace {

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
  const std::string got = read_to_end(fd->get()); // the first read, after the cut
  EXPECT_NE(got.find(R"({"type":"cut-off","what":"the reader was too slow)"), std::string::npos);
  EXPECT_EQ(got.substr(got.size() - 5), "0\r\n\r\n"); // complete: the framing survived the cut
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
    // The connection stays usable.
    const auto second = client.send({"GET", "/now", {}, ""}, kWaitLimit);
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
