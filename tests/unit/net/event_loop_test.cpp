#include "common/net/event_loop.h"

#include "common/base/unique_fd.h"
#include "tests/unit/net/wait_limit.h"

#include <array>
#include <csignal>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace nsa::net {
namespace {

using namespace std::chrono_literals;

struct Pair {
  UniqueFd a, b;
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
};

TEST(EventLoop, PostRunsInOrderFromAnotherThread) {
  EventLoop loop;
  std::string order;
  std::thread other([&] {
    loop.post([&] { order += 'a'; });
    loop.post([&] { order += 'b'; });
    loop.stop();
  });
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  other.join();
  EXPECT_EQ(order, "ab");
}

TEST(EventLoop, RunForReturnsWhenNothingHappens) {
  EventLoop loop;
  EXPECT_FALSE(loop.run_for(20ms));
}

TEST(EventLoop, TimersFireOnceOrRepeatedlyUntilDropped) {
  EventLoop loop;
  int once = 0, repeated = 0;
  const Timer first = loop.after(1ms, [&] { ++once; });
  Timer second;
  second = loop.every(2ms, [&] {
    if (++repeated < 3) return;
    second.reset(); // from its own callback
    loop.stop();
  });
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_FALSE(loop.run_for(20ms)) << "there is nothing more to come";
  EXPECT_EQ(once, 1);
  EXPECT_EQ(repeated, 3);
}

TEST(EventLoop, ReadableIsLevelTriggered) {
  EventLoop loop;
  Pair pair;
  ASSERT_EQ(::write(pair.b.get(), "xyz", 3), 3);
  std::string got;
  const Watch watch = loop.when_readable(pair.a.get(), [&] {
    char c; // one byte per call, so the rest must call this again
    if (::read(pair.a.get(), &c, 1) == 1) got.push_back(c);
    if (got.size() == 3) loop.stop();
  });
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(got, "xyz");
}

TEST(EventLoop, ReadableAndWritableWatchesOfOneDescriptor) {
  EventLoop loop;
  Pair pair;
  bool wrote = false, read = false;
  Watch writable;
  const Watch readable = loop.when_readable(pair.a.get(), [&] {
    char c;
    read = ::read(pair.a.get(), &c, 1) == 1;
    loop.stop();
  });
  writable = loop.when_writable(pair.a.get(), [&] {
    wrote = true;
    writable.reset();
    EXPECT_EQ(::write(pair.b.get(), "x", 1), 1);
  });
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_TRUE(wrote);
  EXPECT_TRUE(read);
  // The watch did not own the descriptor, so it is still open.
  EXPECT_EQ(::write(pair.a.get(), "x", 1), 1);
}

TEST(EventLoop, ADroppedWatchIsSilentAndTheDescriptorCanBeWatchedAgain) {
  EventLoop loop;
  Pair pair;
  int first = 0, second = 0;
  Watch watch = loop.when_readable(pair.a.get(), [&] { ++first; });
  watch.reset();
  watch = loop.when_readable(pair.a.get(), [&] {
    ++second;
    loop.stop();
  });
  ASSERT_EQ(::write(pair.b.get(), "x", 1), 1);
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
}

// The reactor uses its record of a descriptor again for the next one. If an event of the old
// descriptor is still in the queue, it must not end the wait for the next one. nsad would otherwise
// think that a living process has ended.
TEST(EventLoop, AnEventOfADroppedWatchWakesNoOther) {
  EventLoop loop;
  std::array<Pair, 2> ready;
  Pair silent;
  std::array<Watch, 2> watches;
  Watch later;
  int calls = 0, wrong = 0;
  for (size_t i : {0, 1}) {
    ASSERT_EQ(::send(ready[i].b.get(), "x", 1, 0), 1);
    watches[i] = loop.when_readable(ready[i].a.get(), [&, i] {
      ++calls;
      watches[1 - i].reset(); // its event came together with this one and is still in the queue
      later = loop.when_readable(silent.a.get(), [&] { ++wrong; });
      watches[i].reset();
      loop.stop();
    });
  }
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_FALSE(loop.run_for(50ms)) << "the other event was for nobody";
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(wrong, 0);
  ASSERT_EQ(::send(silent.b.get(), "x", 1, 0), 1); // its own event still wakes it
  later = loop.when_readable(silent.a.get(), [&] {
    ++wrong;
    loop.stop();
  });
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(wrong, 1);
}

TEST(EventLoop, PidfdOfAnEndedChildIsReadable) {
  EventLoop loop;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(3);
  ASSERT_GT(child, 0);
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(pidfd.valid());
  Watch watch;
  int status = 0;
  watch = loop.when_readable(pidfd.get(), [&] {
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    watch.reset();
    loop.stop();
  });
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(EventLoop, SignalsArriveAsNumbers) {
  EventLoop loop;
  int got = 0;
  const Watch watch = loop.when_signalled({SIGUSR1, SIGUSR2}, [&](int signal) {
    got = signal;
    loop.stop();
  });
  ::kill(::getpid(), SIGUSR2);
  EXPECT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(got, SIGUSR2);
}

} // namespace
} // namespace nsa::net
