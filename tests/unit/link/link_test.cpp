// The link with a shim that reads late, does not read, closes the connection, or sends requests.
#include "worker/link/inherited.h"
#include "worker/link/link.h"

#include "common/wire/launch_plan.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::link {
namespace {

using wire::MessageType;
using namespace std::chrono_literals;

constexpr auto kWaitLimit = 60s; // only a broken program takes so long

// The shim's end of the socket.
class Peer {
public:
  explicit Peer(int fd) : fd_(fd) {}

  // Returns the next message. The test fails if none arrives.
  std::optional<wire::Message> next() {
    while (true) {
      auto frame = decoder_.next();
      EXPECT_TRUE(frame) << frame.error().what;
      if (!frame) return std::nullopt;
      if (*frame) {
        auto message = wire::decode_message(**frame);
        EXPECT_TRUE(message);
        return *message;
      }
      pollfd p{fd_.get(), POLLIN, 0};
      if (::poll(&p, 1, std::chrono::milliseconds(kWaitLimit).count()) <= 0) {
        ADD_FAILURE() << "no message comes";
        return std::nullopt;
      }
      char chunk[65536];
      const ssize_t got = ::recv(fd_.get(), chunk, sizeof chunk, 0);
      if (got <= 0) return std::nullopt;
      decoder_.feed({chunk, static_cast<size_t>(got)});
    }
  }
  template <class T> void send(MessageType type, const T& value) {
    const std::string bytes = *wire::encode(type, value);
    ASSERT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
  }
  void close() { fd_.reset(); }

private:
  UniqueFd fd_;
  wire::FrameDecoder decoder_;
};

struct Pair {
  UniqueFd rank;
  Peer shim;
};
Pair make_pair_of_sockets() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), Peer(fds[1])};
}

template <class Condition> bool eventually(Condition holds) {
  const MonotonicTime end = MonotonicTime::now() + Duration(kWaitLimit);
  while (MonotonicTime::now() < end) {
    if (holds()) return true;
    ::usleep(1000);
  }
  return false;
}

wire::RankStep step_message(uint64_t step) {
  wire::RankStep s;
  s.step = step;
  s.phase_seconds = {{"forward", 0.5}};
  return s;
}

TEST(Link, MessagesArriveInOrder) {
  auto [rank, shim] = make_pair_of_sockets();
  Link link(std::move(rank));
  for (uint64_t i = 1; i <= 100; ++i)
    link.send(wire::RankFinished{0, i, 0, wire::FinishReason::kCompleted});
  for (uint64_t i = 1; i <= 100; ++i) {
    const auto m = shim.next();
    ASSERT_TRUE(m);
    EXPECT_EQ(wire::body_as<wire::RankFinished>(m->body)->step, i);
  }
  EXPECT_TRUE(link.flush(kWaitLimit));
}

// Nobody reads. Sending does not wait, or it would wait forever here. New step metrics replace old
// ones. What must arrive arrives in order once somebody reads.
TEST(Link, NeverBlocksAndDropsOnlyWhatMayBeDropped) {
  auto [rank, shim] = make_pair_of_sockets();
  Link link(std::move(rank), {.droppable_messages = 16});
  constexpr uint64_t kSteps = 20000; // far more than a socket buffer holds
  for (uint64_t i = 1; i <= kSteps; ++i) {
    link.send(step_message(i));
    if (i % 100 == 0) link.send(wire::RankCheckpoint{0, i, 0, 0, "", "", true});
  }
  EXPECT_FALSE(link.flush(1ms));
  uint64_t steps_seen = 0, last_step = 0, checkpoints = 0;
  while (checkpoints < kSteps / 100 || last_step < kSteps) {
    const auto m = shim.next();
    ASSERT_TRUE(m);
    if (m->type == MessageType::kRankStep) {
      const uint64_t step = wire::body_as<wire::RankStep>(m->body)->step;
      EXPECT_GT(step, last_step);
      last_step = step;
      ++steps_seen;
    } else {
      ++checkpoints;
      EXPECT_EQ(wire::body_as<wire::RankCheckpoint>(m->body)->step, checkpoints * 100);
    }
  }
  EXPECT_GT(link.dropped(), 0u);
  EXPECT_EQ(steps_seen + link.dropped(), kSteps);
  EXPECT_EQ(link.lost(), 0u);
}

TEST(Link, PendingBytesAreBounded) {
  auto [rank, shim] = make_pair_of_sockets();
  Link link(std::move(rank), {.droppable_messages = 16, .pending_bytes = 1 << 16});
  wire::RankError error;
  error.what = std::string(4096, 'x');
  for (int i = 0; i < 1000; ++i)
    link.send(error);
  EXPECT_GT(link.lost(), 0u);
}

TEST(Link, StopIsLatchedAndCheckpointHandedOutOnce) {
  auto [rank, shim] = make_pair_of_sockets();
  Link link(std::move(rank));
  EXPECT_FALSE(link.take_requests().stop);
  shim.send(MessageType::kCheckpointRequest, wire::CheckpointRequest{});
  EXPECT_TRUE(eventually([&] { return link.take_requests().checkpoint; }));
  EXPECT_FALSE(link.take_requests().checkpoint);
  shim.send(MessageType::kStopRequest, wire::StopRequest{false});
  EXPECT_TRUE(eventually([&] { return link.take_requests().stop; }));
  EXPECT_TRUE(link.take_requests().stop);
  EXPECT_FALSE(link.take_requests().checkpoint_before_stop);
}

// The link's own thread handles the request, because the training thread may hang.
TEST(Link, HandsARequestForTheFlightRecordToWhoeverIsThere) {
  auto [rank, shim] = make_pair_of_sockets();
  Link link(std::move(rank));
  std::mutex mutex;
  std::vector<std::string> folders;
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return folders.size();
  };
  shim.send(MessageType::kCollectivesRequest, wire::CollectivesRequest{"/nobody/is/there"});
  shim.send(MessageType::kCheckpointRequest, wire::CheckpointRequest{});
  ASSERT_TRUE(eventually([&] { return link.pending_requests().checkpoint; }));
  link.on_collectives_request([&](const std::string& folder) {
    const std::lock_guard lock(mutex);
    folders.push_back(folder);
  });
  shim.send(MessageType::kCollectivesRequest, wire::CollectivesRequest{"/evidence/hang-1"});
  ASSERT_TRUE(eventually([&] { return count() == 1; }));
  link.on_collectives_request({});
  shim.send(MessageType::kCollectivesRequest, wire::CollectivesRequest{"/evidence/hang-2"});
  shim.send(MessageType::kStopRequest, wire::StopRequest{});
  ASSERT_TRUE(eventually([&] { return link.pending_requests().stop; }));
  EXPECT_EQ(folders, std::vector<std::string>{"/evidence/hang-1"});
}

TEST(Link, GoesOnWhenTheShimGoesAway) {
  auto [rank, shim] = make_pair_of_sockets();
  Link link(std::move(rank));
  shim.close();
  EXPECT_TRUE(eventually([&] { return !link.connected(); }));
  link.send(wire::RankFinished{});
  EXPECT_FALSE(link.flush(kWaitLimit)) << "says so at once instead of waiting";
}

TEST(Link, GarbageFromTheShimEndsTheLinkOnly) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Link other{UniqueFd(fds[0])};
  ASSERT_EQ(::send(fds[1], "not a frame at all, sorry", 25, 0), 25);
  EXPECT_TRUE(eventually([&] { return !other.connected(); }));
  ::close(fds[1]);
}

TEST(Link, ByHandThereIsNoThreadAndNothingBlocks) {
  Link link{UniqueFd()};
  link.send(step_message(1));
  EXPECT_FALSE(link.connected());
  EXPECT_FALSE(link.take_requests().stop);
  link.request_stop();
  EXPECT_TRUE(link.take_requests().stop);
}

// Runs in a child process, because the numbers 3 and 4 are fixed.
int in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Gives socket and page the descriptor numbers that a shim gives them.
void place_descriptors(int socket, int page) {
  const int s = ::fcntl(socket, F_DUPFD, 20), p = ::fcntl(page, F_DUPFD, 20);
  ::dup2(s, wire::kRankLinkFd);
  ::dup2(p, wire::kRankPageFd);
}

TEST(Inherited, FindsPageAndSocketOfTheShim) {
  auto page = progress::Page::create(1, 3);
  ASSERT_TRUE(page);
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  EXPECT_EQ(in_child([&] {
              place_descriptors(fds[0], page->fd());
              auto mine = take_inherited(1, 3);
              if (!mine || !mine->supervised) return 1;
              progress::Writer writer(std::move(mine->page));
              writer.begin_step(7, 0);
              writer.enter(progress::Phase::kForward);
              return 0;
            }),
            0);
  ASSERT_TRUE(page->read_host());
  EXPECT_EQ(page->read_host()->step, 7u) << "what the child wrote is seen from here";
  EXPECT_EQ(in_child([&] {
              place_descriptors(fds[0], page->fd());
              return take_inherited(0, 3) ? 1 : 0;
            }),
            0)
      << "the page of another rank is refused";
  ::close(fds[0]);
  ::close(fds[1]);
}

TEST(Inherited, OtherUsesOfTheseNumbersMeanByHand) {
  EXPECT_EQ(in_child([] {
              int pipe_fds[2];
              if (::pipe(pipe_fds) != 0) return 2;
              place_descriptors(pipe_fds[0], pipe_fds[1]);
              auto mine = take_inherited(0, 1);
              return mine && !mine->supervised && !mine->link ? 0 : 1;
            }),
            0);
}

} // namespace
} // namespace nsa::link
