// The mesh. Tests in which a rank dies or hangs use real processes; the others use threads.
#include "common/base/json.h"
#include "worker/mesh/leave.h"
#include "worker/mesh/mesh.h"

#include "common/base/file.h"
#include "common/base/local_socket.h"
#include "common/base/unique_fd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <poll.h>
#include <random>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace nsa::comm {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// A folder as rendezvous. It works between threads and between processes.
class FolderRendezvous : public Rendezvous {
public:
  explicit FolderRendezvous(fs::path folder) : folder_(std::move(folder)) {}
  Status publish(const std::string& key, const std::string& value) override {
    fs::create_directories((folder_ / key).parent_path());
    return write_file_atomic(folder_ / key, value);
  }
  Result<std::string> wait_for(const std::string& key, Duration limit) override {
    const MonotonicTime end = MonotonicTime::now() + limit;
    while (MonotonicTime::now() < end) {
      if (auto text = read_file(folder_ / key)) return text;
      ::usleep(500);
    }
    return fail(ErrorCode::kExhausted, "nothing under " + key);
  }

private:
  fs::path folder_;
};

class MeshTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "nsa-mesh-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<Mesh> join(Rank rank, int world, Duration limit = 20s) {
    FolderRendezvous rendezvous(folder_);
    auto mesh = Mesh::connect(rank, world, rendezvous, {folder_, 60s, limit});
    EXPECT_TRUE(mesh) << mesh.error().what;
    return mesh ? std::move(*mesh) : nullptr;
  }

  // Runs body(rank, mesh) on one thread for each rank.
  void with_threads(int world, const std::function<void(Rank, Mesh&)>& body, Duration limit = 20s) {
    std::vector<std::thread> threads;
    for (Rank r = 0; r < world; ++r)
      threads.emplace_back([&, r] {
        auto mesh = join(r, world, limit);
        if (mesh) body(r, *mesh);
      });
    for (auto& t : threads)
      t.join();
  }

  // Runs body(rank) in one process for each rank, and returns their pids. A body returns 0 if
  // everything was as expected.
  std::vector<pid_t> with_processes(int world, const std::function<int(Rank)>& body) {
    std::vector<pid_t> pids;
    for (Rank r = 0; r < world; ++r) {
      const pid_t pid = ::fork();
      if (pid == 0) ::_exit(body(r));
      pids.push_back(pid);
    }
    return pids;
  }
  static int wait_exit(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  }

  fs::path folder_;
};

std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values)
    v = normal(random);
  return values;
}

TEST_F(MeshTest, SumsInRankOrderBitForBit) {
  constexpr int kWorld = 4;
  for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{5000}, size_t{300001}}) {
    std::vector<float> expected(count);
    for (int r = 0; r < kWorld; ++r) {
      const auto part = random_floats(count, unsigned(r));
      for (size_t i = 0; i < count; ++i)
        expected[i] = r == 0 ? part[i] : expected[i] + part[i];
    }
    folder_ /= std::to_string(count);
    fs::create_directories(folder_);
    std::vector<std::vector<float>> results(kWorld);
    with_threads(kWorld, [&](Rank r, Mesh& mesh) {
      auto values = random_floats(count, unsigned(r));
      ASSERT_TRUE(mesh.all_reduce(values.data(), count, kFloat32, {1, Kind::kGradient, 0})->wait());
      results[size_t(r)] = values;
    });
    for (int r = 0; r < kWorld; ++r)
      EXPECT_EQ(results[size_t(r)], expected) << "rank " << r << ", " << count << " values";
  }
}

// The two halves of an all-reduce alone. First each rank's own chunk is the sum, and the others are
// unchanged. Then every chunk comes from its rank.
TEST_F(MeshTest, ReduceScatterAndGatherMakeAnAllReduce) {
  constexpr int kWorld = 3;
  constexpr size_t kChunk = 70001, kCount = kWorld * kChunk;
  std::vector<float> sum(kCount);
  for (int r = 0; r < kWorld; ++r) {
    const auto part = random_floats(kCount, unsigned(r));
    for (size_t i = 0; i < kCount; ++i)
      sum[i] = r == 0 ? part[i] : sum[i] + part[i];
  }
  with_threads(kWorld, [&](Rank r, Mesh& mesh) {
    const auto part = random_floats(kCount, unsigned(r));
    auto values = part;
    ASSERT_TRUE(
        mesh.reduce_scatter(values.data(), kCount, kFloat32, {1, Kind::kGradient, 0})->wait());
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(values[i], i / kChunk == size_t(r) ? sum[i] : part[i]) << i;
    ASSERT_TRUE(
        mesh.all_gather(values.data(), kCount, sizeof(float), {1, Kind::kWeights, 0})->wait());
    EXPECT_EQ(values, sum);
  });
}

// Several operations at once, with more bytes than socket buffers hold. Nothing deadlocks, and all
// complete.
TEST_F(MeshTest, ManyLargeOperationsInFlight) {
  constexpr size_t kCount = 1 << 20;
  with_threads(3, [&](Rank r, Mesh& mesh) {
    std::vector<std::vector<float>> buckets(4, std::vector<float>(kCount, float(r + 1)));
    std::vector<std::unique_ptr<Pending>> pending;
    for (uint32_t b = 0; b < 4; ++b)
      pending.push_back(
          mesh.all_reduce(buckets[b].data(), kCount, kFloat32, {7, Kind::kGradient, b}));
    for (auto& p : pending)
      ASSERT_TRUE(p->wait());
    for (const auto& bucket : buckets)
      EXPECT_EQ(bucket[kCount - 1], 6.0f);
  });
}

// The log is read while rank 0 hangs in an operation. It says what is complete, what is in
// progress, and that rank 1 never came.
TEST_F(MeshTest, FlightLogTellsHowFarEachOperationCame) {
  std::mutex mutex;
  std::condition_variable told;
  bool done = false;
  with_threads(2, [&](Rank r, Mesh& mesh) {
    std::vector<float> values(4, 1.0f);
    ASSERT_TRUE(mesh.all_reduce(values.data(), 4, kFloat32, {7, Kind::kGradient, 2})->wait());
    std::unique_lock lock(mutex);
    if (r == 1) {
      told.wait(lock, [&] { return done; });
      return;
    }
    lock.unlock();
    const auto stuck = mesh.barrier({8, Kind::kBarrier, 0});
    const auto entries = [&] {
      return nlohmann::json::parse(mesh.flight_log().json()).at("entries");
    };
    const MonotonicTime end = MonotonicTime::now() + Duration(10s);
    while (entries().back()["state"] != "started" && MonotonicTime::now() < end)
      ::usleep(1000);
    const auto log = entries();
    lock.lock();
    done = true;
    told.notify_all();
    ASSERT_EQ(log.size(), 2u);
    EXPECT_EQ(log[0]["collective_seq_id"], 1);
    EXPECT_EQ(log[0]["profiling_name"], "mesh:all_reduce");
    EXPECT_EQ(log[0]["what"], "gradient bucket 2 of step 7");
    EXPECT_EQ(log[0]["bytes"], 16);
    EXPECT_EQ(log[0]["state"], "completed");
    EXPECT_GE(log[0]["time_discovered_completed_ns"], log[0]["time_created_ns"]);
    EXPECT_EQ(log[1]["profiling_name"], "mesh:barrier");
    EXPECT_EQ(log[1]["state"], "started");
    EXPECT_EQ(log[1]["time_discovered_completed_ns"], 0);
  });
}

TEST(FlightLog, KeepsTheNewest) {
  FlightLog log(3);
  for (int i = 0; i < 5; ++i)
    log.scheduled("mesh:barrier", "", 0);
  log.ended(1, true); // its entry is no longer in the log
  log.started(5);
  log.ended(5, false);
  const auto entries = nlohmann::json::parse(log.json()).at("entries");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0]["collective_seq_id"], 3);
  EXPECT_EQ(entries[0]["state"], "scheduled");
  EXPECT_EQ(entries[2]["state"], "started");
  EXPECT_EQ(entries[2]["error"], "failed");
}

TEST_F(MeshTest, BroadcastAndBarrier) {
  with_threads(3, [&](Rank r, Mesh& mesh) {
    std::vector<double> values(1000, r == 1 ? 2.5 : 0.0);
    ASSERT_TRUE(
        mesh.broadcast(values.data(), values.size() * 8, 1, {0, Kind::kParameters, 0})->wait());
    EXPECT_EQ(values, std::vector<double>(1000, 2.5));
    ASSERT_TRUE(mesh.barrier({0, Kind::kBarrier, 0})->wait());
  });
}

TEST_F(MeshTest, KilledPeerIsNamedAtOnceByEveryone) {
  auto pids = with_processes(3, [&](Rank r) {
    auto mesh = join(r, 3, 100s);
    std::vector<float> values(1 << 18, 1.0f);
    if (!mesh->all_reduce(values.data(), values.size(), kFloat32, {1, Kind::kGradient, 0})->wait())
      return 10;
    if (r == 2) ::pause();
    const MonotonicTime begin = MonotonicTime::now();
    const Outcome lost =
        mesh->all_reduce(values.data(), values.size(), kFloat32, {2, Kind::kGradient, 0})->wait();
    if (lost) return 11;
    if (to_seconds(MonotonicTime::now() - begin) > 60) return 12;
    return lost.error().blamed == Rank(2) ? 0 : 13;
  });
  // Rank 2 sleeps forever once it is in pause(2).
  for (int i = 0; i < 5000; ++i) {
    const auto state = read_file("/proc/" + std::to_string(pids[2]) + "/syscall");
    if (state && state->rfind("34 ", 0) == 0) break; // the system call pause
    ::usleep(1000);
  }
  ::kill(pids[2], SIGKILL);
  EXPECT_EQ(wait_exit(pids[2]), 256 + SIGKILL);
  EXPECT_EQ(wait_exit(pids[0]), 0);
  EXPECT_EQ(wait_exit(pids[1]), 0);
}

// A rank that looks late finds that both peers are gone: the dead one, and one that left because of
// it. The latter left between messages, or in the middle of one that the sockets cannot hold. Its
// note distinguishes the two.
class MeshWitness : public MeshTest, public ::testing::WithParamInterface<size_t> {};

TEST_P(MeshWitness, ThatLooksLateBlamesTheDeadAndNotTheVictim) {
  const size_t count = GetParam();
  std::vector<float> values(count, 1.0f);
  auto late = std::thread([&] {
    auto mesh = join(1, 3);
    while (!fs::exists(folder_ / "all-gone"))
      ::usleep(1000);
    const Outcome o =
        mesh->all_reduce(values.data(), values.size(), kFloat32, {1, Kind::kGradient, 0})->wait();
    ASSERT_FALSE(o);
    EXPECT_EQ(o.error().blamed, Rank(2)) << o.error().what;
  });
  auto dead = std::thread([&] { join(2, 3).reset(); });
  auto victim = std::thread([&] {
    auto mesh = join(0, 3);
    std::vector<float> own(count, 1.0f);
    const Outcome o =
        mesh->all_reduce(own.data(), own.size(), kFloat32, {1, Kind::kGradient, 0})->wait();
    ASSERT_FALSE(o);
    EXPECT_EQ(o.error().blamed, Rank(2)) << o.error().what;
  });
  dead.join();
  victim.join();
  std::ofstream(folder_ / "all-gone") << "yes";
  late.join();
}

INSTANTIATE_TEST_SUITE_P(Values, MeshWitness, ::testing::Values(1000, 1 << 22));

// Rank 1 skips the collective of step 5 and continues with step 6. Both ranks wait, and no data are
// mixed. At the time-out each says where the other is.
TEST_F(MeshTest, SkippedCollectiveNeverMixesData) {
  with_threads(
      2,
      [&](Rank r, Mesh& mesh) {
        std::vector<float> values(1000, float(r + 1));
        const uint64_t step = r == 1 ? 6 : 5;
        const Outcome o =
            mesh.all_reduce(values.data(), values.size(), kFloat32, {step, Kind::kGradient, 0})
                ->wait();
        ASSERT_FALSE(o);
        EXPECT_EQ(o.error().blamed, Rank(1 - r));
        EXPECT_THAT(o.error().what, HasSubstr("rank " + std::to_string(1 - r) +
                                              " is in gradient bucket 0 of step " +
                                              std::to_string(r == 1 ? 5 : 6)));
        EXPECT_EQ(values, std::vector<float>(1000, float(r + 1)));
      },
      3s); // enough time for both to receive the other's header
}

TEST_F(MeshTest, SizesThatDifferAreAMismatchToo) {
  with_threads(
      2,
      [&](Rank r, Mesh& mesh) {
        std::vector<float> values(1000, 1.0f);
        EXPECT_FALSE(
            mesh.all_reduce(values.data(), r == 0 ? 1000 : 900, kFloat32, {1, Kind::kGradient, 0})
                ->wait());
      },
      300ms);
}

TEST_F(MeshTest, SilentPeerIsBlamedAtTheTimeOut) {
  std::promise<void> over;
  with_threads(
      2,
      [&](Rank r, Mesh& mesh) {
        if (r == 1) return over.get_future().wait(); // connected, but silent
        std::vector<float> values(10, 1.0f);
        const Outcome o =
            mesh.all_reduce(values.data(), 10, kFloat32, {3, Kind::kGradient, 0})->wait();
        over.set_value();
        ASSERT_FALSE(o);
        EXPECT_EQ(o.error().blamed, Rank(1));
        EXPECT_THAT(o.error().what, HasSubstr("rank 1 has not sent its part"));
      },
      300ms);
}

TEST_F(MeshTest, AfterAFailureEveryOperationFailsAlike) {
  with_threads(
      2,
      [&](Rank r, Mesh& mesh) {
        std::vector<float> values(10, 1.0f);
        const Tag odd{uint64_t(r), Kind::kGradient, 0};
        ASSERT_FALSE(mesh.all_reduce(values.data(), 10, kFloat32, odd)->wait());
        EXPECT_FALSE(mesh.barrier({9, Kind::kBarrier, 0})->wait());
      },
      200ms);
}

// A rank that leaves in the middle of an operation waits neither for its time-out nor for its peer,
// which stays.
TEST_F(MeshTest, DestructionEndsAnOperationUnderWay) {
  const MonotonicTime begin = MonotonicTime::now();
  std::vector<float> values(10); // outlives the mesh, whose thread may still use it
  std::promise<void> left;
  auto stays = std::thread([&] {
    const auto mesh = join(1, 2, 200s);
    left.get_future().wait();
  });
  {
    const auto mesh = join(0, 2, 200s);
    mesh->all_reduce(values.data(), 10, kFloat32, {1, Kind::kGradient, 0});
    while (mesh->flight_log().json().find("\"started\"") == std::string::npos)
      ::usleep(1000);
  }
  left.set_value();
  stays.join();
  EXPECT_LT(to_seconds(MonotonicTime::now() - begin), 60.0);
}

// Like a store that is asked over a connection: every answer takes a moment.
class DistantRendezvous : public FolderRendezvous {
public:
  using FolderRendezvous::FolderRendezvous;
  Result<std::string> wait_for(const std::string& key, Duration limit) override {
    constexpr auto kWay = 20ms;
    std::this_thread::sleep_for(kWay);
    return FolderRendezvous::wait_for(key, limit - kWay);
  }
};

// Ranks that have finished their last step leave together, and none waits long for a dead one. A
// rank that came in time is not taken for dead because another one used up the time.
TEST_F(MeshTest, RanksLeaveTogetherOrWithoutTheOneThatIsGone) {
  const auto leave = [&](const std::string& name, int world, const std::vector<Rank>& present,
                         Duration limit) {
    std::vector<std::string> problems(present.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < present.size(); ++i)
      threads.emplace_back([&, i] {
        DistantRendezvous rendezvous(folder_ / name);
        const Status left = take_leave(rendezvous, present[i], world, limit);
        if (!left) problems[i] = left.error().what;
      });
    for (auto& t : threads)
      t.join();
    return problems;
  };
  EXPECT_THAT(leave("all", 3, {0, 1, 2}, 20s), ::testing::Each(""));
  const MonotonicTime begin = MonotonicTime::now();
  EXPECT_THAT(leave("first", 4, {0, 1}, 3s),
              ::testing::Each("did not come to the end: rank 2, rank 3"));
  EXPECT_THAT(leave("others", 4, {0, 2, 3}, 3s),
              ::testing::Each("did not come to the end: rank 1"));
  EXPECT_LT(to_seconds(MonotonicTime::now() - begin), 60.0);
}

TEST_F(MeshTest, MissingPeerAtStartIsNamed) {
  FolderRendezvous rendezvous(folder_);
  auto mesh = Mesh::connect(0, 2, rendezvous, {folder_, 200ms, 1s});
  ASSERT_FALSE(mesh);
  EXPECT_THAT(mesh.error().what, HasSubstr("rank 1"));
}

// The sockets have names only until all ranks are connected.
TEST_F(MeshTest, NobodyListensOnceRanksAreConnected) {
  with_threads(3, [&](Rank, Mesh& mesh) {
    ASSERT_TRUE(mesh.barrier({0, Kind::kBarrier, 0})->wait());
    for (Rank r = 0; r < 3; ++r)
      EXPECT_FALSE(connect_in_folder(folder_, "mesh-" + std::to_string(r) + ".sock", SOCK_STREAM));
    ASSERT_TRUE(mesh.barrier({1, Kind::kBarrier, 0})->wait());
  });
}

TEST_F(MeshTest, WhoSaysNothingOrSomethingElseHoldsNobodyUp) {
  std::unique_ptr<Mesh> first;
  std::jthread rank_0([&] { first = join(0, 2); });
  FolderRendezvous rendezvous(folder_);
  ASSERT_TRUE(rendezvous.wait_for("mesh/0", 30s));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 3; ++i) {
    auto stranger = connect_in_folder(folder_, "mesh-0.sock", SOCK_STREAM);
    ASSERT_TRUE(stranger) << stranger.error().what;
    strangers.push_back(std::move(*stranger));
  }
  ASSERT_EQ(::send(strangers[1].get(), "GET / HTTP/1.1", 14, MSG_NOSIGNAL), 14);
  strangers[2].reset(); // this one closes its connection
  pollfd turned_away{strangers[1].get(), POLLIN, 0}, silent{strangers[0].get(), POLLIN, 0};
  ASSERT_EQ(::poll(&turned_away, 1, 20'000), 1);
  char byte;
  EXPECT_LE(::recv(strangers[1].get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(::poll(&silent, 1, 0), 0) << "who is silent may still be a peer";
  const auto second = join(1, 2, 20s); // accepted after all of them
  rank_0.join();
  EXPECT_TRUE(first && second);
}

} // namespace
} // namespace nsa::comm
