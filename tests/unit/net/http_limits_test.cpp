// How much of the shared server one user can use: connections and requests. Processes with other
// uids try it.
#include "common/net/http_client.h"
#include "common/net/http_server.h"
#include "common/net/unix_socket.h"
#include "tests/support/as_user.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/net/wait_limit.h"

#include <arpa/inet.h>
#include <csignal>
#include <filesystem>
#include <future>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

namespace nsa::net {
namespace {

using namespace std::chrono_literals;

// A server on a separate thread. Every user may connect to it.
class Open {
public:
  explicit Open(HttpLimits limits = {}, bool tcp = false) : path((folder.path() / "s").string()) {
    std::filesystem::permissions(folder.path(), std::filesystem::perms(0711));
    const auto handler = [](const Request& request) {
      Response response;
      response.body =
          std::to_string(request.peer.uid) + " " + std::to_string(request.peer.groups.size());
      if (request.path == "/stream")
        response.stream = [](std::shared_ptr<Stream> stream) {
          stream->write("line\n");
          stream->when_closed([stream] {}); // open until its reader closes it
        };
      return response;
    };
    auto made = tcp ? HttpServer::listen_tcp(loop, "127.0.0.1", 0, handler, limits)
                    : HttpServer::listen_unix(loop, path, 0666, handler, limits);
    EXPECT_TRUE(made) << made.error().what;
    server = std::move(*made);
    thread = std::thread([this] { loop.run(); });
  }
  ~Open() {
    loop.post([this] { server.reset(); });
    loop.stop();
    thread.join();
  }
  size_t connections() {
    std::promise<size_t> count;
    loop.post([&] { count.set_value(server->connections()); });
    return count.get_future().get();
  }

  test::TemporaryFolder folder;
  std::string path;
  EventLoop loop;
  std::unique_ptr<HttpServer> server;
  std::thread thread;
};

// Returns the status of the answer, for example 200 or 429; 0 if there is none.
int ask(const std::string& path) {
  auto client = HttpClient::connect_unix(path);
  if (!client) return 0;
  const auto answer = client->send({"GET", "/", {}, ""}, kWaitLimit);
  return answer ? answer->status : 0;
}

bool is_closed(int fd) { // whether the server closes it within the limit
  pollfd waiting{fd, POLLIN, 0};
  char byte;
  while (::poll(&waiting, 1, 60'000) > 0)
    if (::read(fd, &byte, 1) <= 0) return true;
  return false;
}

TEST(HttpLimits, AnIdleConnectionGivesWayAndABusyOneDoesNot) {
  HttpLimits limits;
  limits.connections_of_one = 2;
  Open open(limits);
  auto first = connect_unix_socket(open.path), second = connect_unix_socket(open.path);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(ask(open.path), 200);
  EXPECT_TRUE(is_closed(first->get())) << "the one that was idle for longest";
  // Until the server has noticed the end of ask()'s connection.
  for (int i = 0; i < 6'000 && open.connections() > 1; ++i)
    std::this_thread::sleep_for(10ms);
  const std::string request = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
  auto third = connect_unix_socket(open.path);
  for (const int fd : {second->get(), third->get()}) {
    ASSERT_EQ(::send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    char head[8];
    ASSERT_GT(::read(fd, head, sizeof head), 0);
  }
  auto refused = connect_unix_socket(open.path);
  ASSERT_TRUE(refused);
  std::string answer(4096, '\0');
  const ssize_t got = ::read(refused->get(), answer.data(), answer.size());
  ASSERT_GT(got, 0);
  EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 429");
  EXPECT_TRUE(is_closed(refused->get()));
  EXPECT_EQ(open.connections(), 2u) << "who is refused holds nothing";
}

TEST(HttpLimits, TwoHundredAndSixtyIdleConnectionsOfOneUserBlockNobody) {
  if (!test::can_be_others()) GTEST_SKIP() << "needs root, to connect as other users";
  Open open;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t alice = test::start_as(test::kAlice, [&]() -> int {
    std::vector<UniqueFd> held;
    for (int i = 0; i < 260; ++i)
      if (auto fd = connect_unix_socket(open.path)) held.push_back(std::move(*fd));
    const char done = held.size() == 260 ? 'y' : 'n';
    (void)!::write(ready[1], &done, 1);
    while (true)
      ::pause();
  });
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y') << "the attack itself must work";
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(test::run_as(test::kBob, [&] { return ask(open.path) == 200 ? 0 : 1; }), 0);
  EXPECT_EQ(ask(open.path), 200) << "nor root";
  EXPECT_LE(open.connections(), HttpLimits{}.connections_of_one + 4);
  ::kill(alice, SIGKILL);
  test::wait_for(alice);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(HttpLimits, ManyUsersTogetherDoNotShutOutOneMore) {
  if (!test::can_be_others()) GTEST_SKIP() << "needs root, to connect as other users";
  HttpLimits limits;
  limits.connections = 12;
  limits.connections_of_one = 4;
  Open open(limits);
  std::vector<pid_t> crowd;
  for (uid_t user = 0; user < 3; ++user) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    crowd.push_back(test::start_as(test::kAlice + 10 + user, [&]() -> int {
      std::vector<UniqueFd> held; // all of them are streams, so none is idle
      for (int i = 0; i < 4; ++i) {
        auto fd = connect_unix_socket(open.path);
        const std::string request = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
        if (!fd || ::send(fd->get(), request.data(), request.size(), 0) < 0) continue;
        char head[8];
        if (::read(fd->get(), head, sizeof head) > 0) held.push_back(std::move(*fd));
      }
      const char done = held.size() == 4 ? 'y' : 'n';
      (void)!::write(ready[1], &done, 1);
      while (true)
        ::pause();
    }));
    char said = 0;
    ASSERT_EQ(::read(ready[0], &said, 1), 1);
    EXPECT_EQ(said, 'y');
  }
  EXPECT_EQ(open.connections(), 12u);
  EXPECT_EQ(test::run_as(test::kBob, [&] { return ask(open.path) == 200 ? 0 : 1; }), 0);
  EXPECT_LE(open.connections(), 12u);
  for (const pid_t child : crowd) {
    ::kill(child, SIGKILL);
    test::wait_for(child);
  }
}

TEST(HttpLimits, WhoAsksTooMuchWaits) {
  HttpLimits limits;
  limits.requests_per_second = 20;
  limits.request_burst = 2;
  Open open(limits);
  const MonotonicTime begin = MonotonicTime::now();
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(ask(open.path), 200) << "it waits, and is not refused";
  EXPECT_GE(to_seconds(MonotonicTime::now() - begin), 5 / 20.0) << "six requests at the rate";
}

TEST(HttpLimits, TheCallersGroupsAreThoseOfItsProcess) {
  if (!test::can_be_others()) GTEST_SKIP() << "needs root, to connect as other users";
  Open open;
  const auto groups_seen = [&](std::vector<gid_t> groups) {
    return test::run_as(
        test::kBob,
        [&] {
          auto client = HttpClient::connect_unix(open.path);
          const auto answer = client->send({"GET", "/", {}, ""}, kWaitLimit);
          const std::string user = std::to_string(test::kBob) + " ";
          if (!answer || answer->body.rfind(user, 0) != 0) return 99;
          return std::stoi(answer->body.substr(user.size()));
        },
        std::move(groups));
  };
  EXPECT_EQ(groups_seen({}), 0);
  EXPECT_EQ(groups_seen({5, 7, test::kAdministrators}), 3);
}

TEST(HttpLimits, AFloodOnAPortTakesABoundedNumberOfDescriptors) {
  HttpLimits limits;
  limits.connections = limits.connections_of_one = 16;
  Open open(limits, true);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(open.server->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<UniqueFd> held;
  const auto connect_once = [&] {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  };
  for (int i = 0; i < 500; ++i)
    held.push_back(connect_once());
  const UniqueFd scraper = connect_once();
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_GT(::send(scraper.get(), request.data(), request.size(), 0), 0);
  char head[12];
  ASSERT_EQ(::read(scraper.get(), head, sizeof head), static_cast<ssize_t>(sizeof head));
  EXPECT_EQ(std::string(head, sizeof head), "HTTP/1.1 200");
  EXPECT_LE(open.connections(), 16u);
  EXPECT_TRUE(is_closed(held.front().get())) << "closed, not only refused";
}

// It would be a guess which of the two hosts is checked.
TEST(HttpLimits, TwoHostsAreRefused) {
  Open open;
  auto fd = connect_unix_socket(open.path);
  ASSERT_TRUE(fd) << fd.error().what;
  const std::string request = "GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n";
  ASSERT_GT(::send(fd->get(), request.data(), request.size(), 0), 0);
  char head[12];
  ASSERT_EQ(::read(fd->get(), head, sizeof head), static_cast<ssize_t>(sizeof head));
  EXPECT_EQ(std::string(head, sizeof head), "HTTP/1.1 400");
}

} // namespace
} // namespace nsa::net
