// How ranks leave (take_leave()) as NCCL ranks do. Processes meet in the store that rank 0 serves.
// One of them is killed or stopped after its last step. What such ranks then do with their
// communicators needs GPUs.
#include "common/base/json.h"
#include "tests/support/temporary_folder.h"
#include "worker/mesh/leave.h"
#include "worker/mesh/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr int kWorld = 3;

struct End {
  std::string problem; // of take_leave(); empty: all ranks came
  double seconds = 0;  // duration
  int signal = 0;      // the signal that ended the process; then the other members are unknown
};

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, size_t(n));
  ::close(fd);
  return text;
}

// Starts the ranks in separate processes. All have finished their last step when `fate` is called.
// A rank that returns from it leaves. A rank that is stopped is killed when the others have ended.
std::vector<End> part(Duration limit, const std::function<void(Rank, Rendezvous&)>& fate) {
  const test::TemporaryFolder place;
  std::vector<pid_t> ranks;
  std::vector<int> said;
  for (Rank rank = 0; rank < kWorld; ++rank) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    if (pid != 0) {
      ::close(ends[1]);
      ranks.push_back(pid);
      said.push_back(ends[0]);
      continue;
    }
    ::alarm(100); // no process remains if the test fails
    auto opened = Store::open(rank, {place.path(), -1, 60s});
    if (!opened) ::_exit(1);
    const auto store = rendezvous_over(std::move(*opened));
    if (!store->publish("here/" + std::to_string(rank), "1")) ::_exit(1);
    for (Rank peer = 0; peer < kWorld; ++peer)
      if (!store->wait_for("here/" + std::to_string(peer), 60s)) ::_exit(1);
    fate(rank, *store);
    const MonotonicTime begin = MonotonicTime::now();
    const Status left = take_leave(*store, rank, kWorld, limit);
    const std::string text = nlohmann::json{{"problem", left ? "" : left.error().what},
                                            {"seconds", to_seconds(MonotonicTime::now() - begin)}}
                                 .dump();
    if (::write(ends[1], text.data(), text.size()) != ssize_t(text.size())) ::_exit(1);
    ::_exit(0);
  }
  std::vector<End> all(kWorld);
  // Rank 0 comes last, because the others need its store. The pipe of a stopped rank would never
  // end.
  for (Rank rank = kWorld; rank-- > 0;) {
    int status = 0;
    EXPECT_EQ(::waitpid(ranks[size_t(rank)], &status, WUNTRACED), ranks[size_t(rank)]);
    End& end = all[size_t(rank)];
    if (WIFSTOPPED(status)) {
      end.signal = WSTOPSIG(status);
      continue;
    }
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    const std::string text = read_all(said[size_t(rank)]);
    if (end.signal != 0) continue;
    EXPECT_EQ(WEXITSTATUS(status), 0) << "rank " << rank << " did not meet its peers";
    if (text.empty()) continue;
    const auto json = nlohmann::json::parse(text);
    end = {json["problem"], json["seconds"], 0};
  }
  for (Rank rank = 0; rank < kWorld; ++rank)
    if (all[size_t(rank)].signal == SIGSTOP) {
      ::kill(ranks[size_t(rank)], SIGKILL);
      ::waitpid(ranks[size_t(rank)], nullptr, 0);
      ::close(said[size_t(rank)]);
    }
  return all;
}

TEST(Leaving, RanksLeaveTogether) {
  const auto ends = part(60s, [](Rank rank, Rendezvous&) {
    if (rank == 1) ::usleep(200000); // the others wait for it
  });
  for (const End& end : ends) {
    EXPECT_EQ(end.problem, "");
    EXPECT_LT(end.seconds, 30.0);
  }
}

// Nobody waits longer than the limit for a rank that died after its last step, or for the time-out
// of a collective.
TEST(Leaving, AKilledPeerIsNamedByTheOthers) {
  const auto ends = part(1s, [](Rank rank, Rendezvous&) {
    // Still asks rank 0's store after rank 0 has given up waiting for rank 2.
    if (rank == 1) ::usleep(300000);
    if (rank == 2) ::raise(SIGKILL);
  });
  EXPECT_EQ(ends[2].signal, SIGKILL);
  for (const Rank rank : {0, 1}) {
    EXPECT_EQ(ends[size_t(rank)].problem, "did not come to the end: rank 2") << rank;
    EXPECT_LT(ends[size_t(rank)].seconds, 30.0);
  }
}

TEST(Leaving, SoIsAStoppedOne) {
  const auto ends = part(1s, [](Rank rank, Rendezvous&) {
    if (rank == 1) ::raise(SIGSTOP);
  });
  EXPECT_EQ(ends[1].signal, SIGSTOP);
  for (const Rank rank : {0, 2})
    EXPECT_EQ(ends[size_t(rank)].problem, "did not come to the end: rank 1") << rank;
}

// The rank has said that it asks nothing more, so its peers do not wait for it. Only rank 0 waits
// to hear that it has stopped asking the store.
TEST(Leaving, OneThatDiesWhileItLeavesIsMissedByRankZeroAlone) {
  const auto ends = part(1s, [](Rank rank, Rendezvous& store) {
    if (rank != 2) return;
    if (!store.publish("done/2", "1")) ::_exit(1);
    ::raise(SIGKILL);
  });
  EXPECT_EQ(ends[2].signal, SIGKILL);
  EXPECT_EQ(ends[1].problem, "");
  EXPECT_EQ(ends[0].problem, "did not come to the end: rank 2");
}

// Answers at once and records the requests, so no rank has to be late.
class WrittenDown final : public Rendezvous {
public:
  explicit WrittenDown(std::vector<std::string> missing) : missing_(std::move(missing)) {}
  Status publish(const std::string& key, const std::string&) override {
    asked.push_back("publish " + key);
    return {};
  }
  Result<std::string> wait_for(const std::string& key, Duration) override {
    asked.push_back("wait for " + key);
    if (std::count(missing_.begin(), missing_.end(), key) == 0) return "1";
    return fail(ErrorCode::kExhausted, key + " did not come");
  }

  std::vector<std::string> asked;

private:
  std::vector<std::string> missing_;
};

// A peer that came may still ask the store for the peer that did not.
TEST(Leaving, RankZeroKeepsItsStoreForThoseThatCameThoughItHasGivenAPeerUp) {
  WrittenDown store({"done/2"});
  const Status left = take_leave(store, 0, kWorld, 1s);
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().what, "did not come to the end: rank 2");
  EXPECT_THAT(store.asked, ElementsAre("publish done/0", "wait for done/1", "wait for done/2",
                                       "publish left/0", "wait for left/1"));
  WrittenDown served({});
  EXPECT_TRUE(take_leave(served, 1, kWorld, 1s));
  EXPECT_THAT(served.asked,
              ElementsAre("publish done/1", "wait for done/0", "wait for done/2", "publish left/1"))
      << "only rank 0 has a store to keep";
}

// The store dies with rank 0, and the others notice it at once.
TEST(Leaving, WithoutRankZeroNobodyWaits) {
  const auto ends = part(90s, [](Rank rank, Rendezvous& store) {
    if (rank != 0) return;
    for (const char* peer : {"done/1", "done/2"})
      if (!store.wait_for(peer, 60s)) ::_exit(1);
    ::raise(SIGKILL);
  });
  EXPECT_EQ(ends[0].signal, SIGKILL);
  for (const Rank rank : {1, 2}) {
    EXPECT_THAT(ends[size_t(rank)].problem, StartsWith("rank 0, ")) << rank;
    EXPECT_LT(ends[size_t(rank)].seconds, 45.0) << rank;
  }
}

} // namespace
} // namespace nsa::comm
