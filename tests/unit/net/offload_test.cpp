#include "common/net/offload.h"

#include "common/base/unique_fd.h"
#include "tests/unit/net/wait_limit.h"

#include <atomic>
#include <fcntl.h>
#include <future>
#include <gtest/gtest.h>
#include <set>
#include <stdexcept>
#include <thread>
#include <unistd.h>

namespace nsa::net {
namespace {

using namespace std::chrono_literals;

// Work that hangs until the test releases it, like a read from a dead file system.
class Hanging {
public:
  Hanging() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_ = std::make_shared<UniqueFd>(ends[0]);
    writer_.reset(ends[1]);
  }
  ~Hanging() { writer_.reset(); }
  auto work() const {
    return [reader = reader_]() -> Result<int> {
      char byte;
      return static_cast<int>(::read(reader->get(), &byte, 1));
    };
  }

private:
  std::shared_ptr<UniqueFd> reader_;
  UniqueFd writer_;
};

TEST(Offload, TheResultComesBackToTheLoopAndTheWorkIsDoneElsewhere) {
  EventLoop loop;
  Offload offload(loop);
  const auto here = std::this_thread::get_id();
  std::thread::id there;
  int got = 0;
  bool returned = false;
  offload.run(
      {"", "a number"},
      [&]() -> Result<int> {
        there = std::this_thread::get_id();
        return 42;
      },
      [&](Result<int> result) {
        EXPECT_TRUE(returned) << "never from inside run()";
        EXPECT_EQ(std::this_thread::get_id(), here);
        got = *result;
        loop.stop();
      });
  returned = true;
  ASSERT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(got, 42);
  EXPECT_NE(there, here);
}

TEST(Offload, ErrorsAndExceptionsBecomeTheResult) {
  EventLoop loop;
  Offload offload(loop);
  std::vector<std::string> told;
  const auto note = [&](const Result<int>& result) {
    told.push_back(result ? "?" : result.error().what);
    if (told.size() == 2) loop.stop();
  };
  offload.run({"", "a"}, []() -> Result<int> { return fail(ErrorCode::kCorrupt, "torn"); }, note);
  offload.run({"", "b"}, []() -> Result<int> { throw std::runtime_error("no memory"); }, note);
  ASSERT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(std::set(told.begin(), told.end()), (std::set<std::string>{"torn", "b: no memory"}));
}

TEST(Offload, AJobThatHangsIsAnsweredInTimeAndKeepsNobodyElseWaiting) {
  EventLoop loop;
  const Hanging hanging;
  Offload offload(loop, {1, 1, 2, 8, 20ms});
  std::string first, second;
  offload.run({"uid 1", "/dead/file"}, hanging.work(), [&](Result<int> r) {
    first = r ? "?" : r.error().what;
    EXPECT_EQ(offload.stuck(), 1U);
    // Only one thread works at a time, and it hangs. Another thread must take its place.
    offload.run(
        {"uid 2", "/good/file"}, []() -> Result<int> { return 1; },
        [&](Result<int> other) {
          second = other ? "read" : other.error().what;
          loop.stop();
        });
  });
  ASSERT_TRUE(loop.run_for(kWaitLimit));
  EXPECT_EQ(first, "/dead/file could not be read in time");
  EXPECT_EQ(second, "read");
}

TEST(Offload, AnOwnerWhoseReadsHangIsRefusedAtOnceUntilOneComesBack) {
  EventLoop loop;
  auto hanging = std::make_unique<Hanging>();
  Offload offload(loop, {4, 2, 8, 8, 20ms});
  int given_up = 0;
  for (int i = 0; i < 2; ++i)
    offload.run({"uid 1", "/dead/file"}, hanging->work(), [&](const Result<int>&) {
      if (++given_up == 2) loop.stop();
    });
  ASSERT_TRUE(loop.run_for(kWaitLimit));
  const auto ask = [&](const std::string& owner) {
    std::string told = "nothing";
    offload.run(
        {owner, "/x"}, []() -> Result<int> { return 1; },
        [&](const Result<int>& r) {
          told = r ? "read" : r.error().what;
          loop.stop();
        });
    EXPECT_TRUE(loop.run_for(kWaitLimit));
    return told;
  };
  EXPECT_EQ(ask("uid 1"), "/x is not read while earlier reads hang: /dead/file");
  EXPECT_EQ(ask("uid 2"), "read");
  hanging.reset();
  while (offload.stuck() > 0)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(ask("uid 1"), "read");
}

TEST(Offload, OneOwnersWaitingJobsHoldUpNobodyAndAreBounded) {
  EventLoop loop;
  auto hanging = std::make_unique<Hanging>();
  Offload offload(loop, {2, 1, 8, 4, 0s});
  int refused = 0, released = 0;
  for (int i = 0; i < 6; ++i)
    offload.run({"uid 1", "/slow"}, hanging->work(), [&](const Result<int>& r) {
      if (r) return void(++released == 4 ? loop.stop() : void());
      EXPECT_EQ(r.error().code, ErrorCode::kExhausted);
      ++refused;
    });
  offload.run(
      {"uid 2", "/fast"}, []() -> Result<int> { return 1; },
      [&](const Result<int>&) { loop.stop(); });
  ASSERT_TRUE(loop.run_for(kWaitLimit)) << "uid 2 waits behind uid 1";
  EXPECT_EQ(refused, 2);
  hanging.reset();
  ASSERT_TRUE(loop.run_for(kWaitLimit));
}

TEST(Offload, ItsEndWaitsForNoThreadThatHangsAndTellsNobody) {
  EventLoop loop;
  const Hanging hanging;
  bool told = false;
  const MonotonicTime began = MonotonicTime::now();
  {
    Offload offload(loop);
    offload.run({"", "/dead"}, hanging.work(), [&](const Result<int>&) { told = true; });
    loop.run_for(20ms);
  }
  EXPECT_LT(to_seconds(MonotonicTime::now() - began), 30);
  loop.run_for(20ms);
  EXPECT_FALSE(told);
}

} // namespace
} // namespace nsa::net
