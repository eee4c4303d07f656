// Server and client over real sockets. The server has a separate thread; the client uses the test's
// thread.
#pragma once

#include "common/net/http_client.h"
#include "common/net/http_server.h"
#include "common/net/unix_socket.h"
#include "tests/unit/net/wait_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace nsa::net {

using namespace std::chrono_literals;

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

// Runs a handler on a unix socket until this object is destroyed.
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
  // Runs `work` on the loop's thread and waits for its result.
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

inline Response text(std::string body) {
  Response response;
  response.body = std::move(body);
  return response;
}

inline std::string read_to_end(int fd) {
  std::string got;
  char chunk[4096];
  for (ssize_t n; (n = ::read(fd, chunk, sizeof chunk)) > 0;)
    got.append(chunk, static_cast<size_t>(n));
  return got;
}

inline std::string exchange_raw(const std::string& path, const std::string& bytes) {
  auto fd = connect_unix_socket(path);
  EXPECT_TRUE(fd);
  EXPECT_EQ(::send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return read_to_end(fd->get());
}

} // namespace nsa::net
