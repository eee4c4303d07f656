#include "daemon/gpu/host_locks.h"
#include "daemon/gpu/monitor.h"
#include "daemon/gpu/nvml.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <mutex>
#include <sys/stat.h>

namespace nsa::gpu {

namespace {

TEST(Nvml, NoDriverIsNoError) {
  const auto gpus = list_gpus("libthere-is-no-such-library.so.1");
  ASSERT_TRUE(gpus);
  EXPECT_TRUE(gpus->list.empty());
  EXPECT_TRUE(gpus->driver.empty());
}

TEST(Nvml, AForeignLibraryIsRefused) {
  const auto gpus = list_gpus("libm.so.6");
  ASSERT_FALSE(gpus);
  EXPECT_EQ(gpus.error().code, ErrorCode::kUnsupported);
}

TEST(Nvml, GpusAreListedWithTheirUsers) {
  const auto gpus = list_gpus(NSA_FAKE_NVML);
  ASSERT_TRUE(gpus) << gpus.error().what;
  EXPECT_EQ(gpus->driver, "580.1");
  ASSERT_EQ(gpus->list.size(), 2u);
  EXPECT_EQ(gpus->list[0].uuid, "GPU-1");
  EXPECT_TRUE(gpus->list[0].processes.empty());
  EXPECT_EQ(gpus->list[1].processes.size(), 100u) << "the list grows with its content";
}

TEST(Nvml, ReadingsThatAGpuDoesNotGiveAreAbsent) {
  const auto gpus = list_gpus(NSA_FAKE_NVML);
  ASSERT_TRUE(gpus);
  const Gpu &first = gpus->list[0], &second = gpus->list[1];
  EXPECT_DOUBLE_EQ(*first.utilization_ratio, 0.97);
  EXPECT_DOUBLE_EQ(*first.temperature_celsius, 61);
  EXPECT_DOUBLE_EQ(*first.power_watts, 412.5);
  EXPECT_DOUBLE_EQ(*first.sm_clock_hertz, 1.98e9);
  EXPECT_EQ(*first.ecc_corrected, 3u);
  EXPECT_EQ(*first.ecc_uncorrected, 0u);
  EXPECT_FALSE(second.power_watts);
  ASSERT_EQ(gpus->links.size(), 1u);
  EXPECT_EQ(gpus->links[0].from, 0);
  EXPECT_EQ(gpus->links[0].to, 1);
  EXPECT_TRUE(gpus->links[0].nvlink);
  EXPECT_TRUE(gpus->links[0].peer_to_peer);
  EXPECT_EQ(gpus->links[0].path, "SYS");
}

TEST(Monitor, TellsReadingsAndXids) {
  std::string pattern = (std::filesystem::temp_directory_path() / "nsa-xid-XXXXXX").string();
  const auto folder = std::filesystem::path(::mkdtemp(pattern.data()));
  ::setenv("FAKE_NVML_XID", (folder / "xid").c_str(), 1);
  std::mutex mutex;
  std::condition_variable told;
  int samples = 0;
  std::vector<Xid> xids;
  Monitor::Events events;
  events.sample = [&](Gpus gpus) {
    EXPECT_EQ(gpus.list.size(), 2u);
    const std::lock_guard lock(mutex);
    ++samples;
    told.notify_all();
  };
  events.xid = [&](Xid xid) {
    const std::lock_guard lock(mutex);
    xids.push_back(xid);
    told.notify_all();
  };
  {
    const Monitor monitor(events, std::chrono::milliseconds(5), NSA_FAKE_NVML);
    std::unique_lock lock(mutex);
    ASSERT_TRUE(told.wait_for(lock, std::chrono::seconds(60), [&] { return samples >= 2; }));
    lock.unlock();
    // Whole at once: the fake library reads it on another thread.
    std::ofstream(folder / "new") << "2 79\n";
    std::filesystem::rename(folder / "new", folder / "xid");
    lock.lock();
    ASSERT_TRUE(told.wait_for(lock, std::chrono::seconds(60), [&] { return !xids.empty(); }));
  }
  EXPECT_EQ(xids[0].uuid, "GPU-2");
  EXPECT_EQ(xids[0].number, 79u);
  ::unsetenv("FAKE_NVML_XID");
  std::filesystem::remove_all(folder);
}

TEST(Monitor, WithoutADriverItIsSilent) {
  Monitor::Events events;
  events.sample = [](Gpus) { ADD_FAILURE() << "there is no GPU"; };
  const Monitor monitor(events, std::chrono::milliseconds(1), "libthere-is-no-such-library.so.1");
}

class HostLocksTest : public testing::Test {
protected:
  HostLocksTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "nsa-locks-XXXXXX").string();
    folder_ = std::filesystem::path(::mkdtemp(pattern.data())) / "locks";
  }
  ~HostLocksTest() override { std::filesystem::remove_all(folder_.parent_path()); }
  Result<HostLocks> daemon(const std::string& state, bool alive = false) {
    return HostLocks::open(folder_, state, [alive](const Holder&) { return alive; });
  }
  std::filesystem::path folder_;
};

TEST_F(HostLocksTest, TwoDaemonsNeverHoldTheSameGpu) {
  auto ann = daemon("/ann"), bob = daemon("/bob");
  ASSERT_TRUE(ann && bob);
  ASSERT_TRUE(ann->acquire("GPU-1", "abcde"));
  const auto refused = bob->acquire("GPU-1", "bbbbb");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().what.find("/ann"), std::string::npos) << "the holder is named";
  EXPECT_TRUE(bob->acquire("GPU-2", "bbbbb"));
  ann->release("GPU-1");
  EXPECT_TRUE(bob->acquire("GPU-1", "bbbbb"));
}

TEST_F(HostLocksTest, RanksKeepTheirGpuWhileTheirDaemonIsAway) {
  {
    auto ann = daemon("/ann");
    ASSERT_TRUE(ann && ann->acquire("GPU-1", "abcde"));
    ASSERT_TRUE(ann->set_holder("GPU-1", {"/ann", "abcde", "boot", 4711, 99}));
  } // killed: the flock goes with it
  auto bob = daemon("/bob", true);
  EXPECT_FALSE(bob->acquire("GPU-1", "bbbbb")) << "the shim named in the file lives";
  auto ann_again = daemon("/ann", true);
  EXPECT_TRUE(ann_again->acquire("GPU-1", "abcde")) << "its own daemon takes it over";
}

TEST_F(HostLocksTest, AGpuOfDeadRanksIsFree) {
  {
    auto ann = daemon("/ann");
    ASSERT_TRUE(ann && ann->acquire("GPU-1", "abcde"));
    ASSERT_TRUE(ann->set_holder("GPU-1", {"/ann", "abcde", "boot", 4711, 99}));
  }
  auto bob = daemon("/bob", false);
  EXPECT_TRUE(bob->acquire("GPU-1", "bbbbb"));
}

TEST_F(HostLocksTest, EveryUserMayLockAndNobodyMayRemove) {
  auto ann = daemon("/ann");
  ASSERT_TRUE(ann && ann->acquire("GPU-1", "abcde"));
  struct stat folder{}, file{};
  ASSERT_EQ(::stat(folder_.c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 07777, 01777u);
  ASSERT_EQ(::stat((folder_ / "GPU-1.lock").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0666u);
}

TEST_F(HostLocksTest, ALinkInTheFolderIsNotFollowed) {
  auto ann = daemon("/ann");
  ASSERT_TRUE(ann);
  std::filesystem::create_symlink("/etc/hostname", folder_ / "GPU-9.lock");
  EXPECT_FALSE(ann->acquire("GPU-9", "abcde"));
  EXPECT_FALSE(ann->acquire("../GPU-9", "abcde"));
}

} // namespace

} // namespace nsa::gpu
