#include "daemon/gpu/gpu_json.h"
#include "daemon/gpu/host_locks.h"
#include "daemon/gpu/monitor.h"
#include "daemon/gpu/nvml.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <mutex>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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

TEST(GpuJson, GivesBackWhatIsKnownAndNoMore) {
  const auto gpus = list_gpus(NSA_FAKE_NVML);
  ASSERT_TRUE(gpus) << gpus.error().what;
  ASSERT_EQ(gpus->list.size(), 2u);
  for (const Gpu& gpu : gpus->list) {
    const nlohmann::json json = gpu;
    EXPECT_EQ(json.contains("power_watts"), gpu.power_watts.has_value());
    const auto back = json.get<Gpu>();
    EXPECT_EQ(back.index, gpu.index);
    EXPECT_EQ(back.uuid, gpu.uuid);
    EXPECT_EQ(back.name, gpu.name);
    EXPECT_EQ(back.memory_bytes, gpu.memory_bytes);
    EXPECT_EQ(back.processes, gpu.processes);
    EXPECT_EQ(back.utilization_ratio, gpu.utilization_ratio);
    EXPECT_EQ(back.power_watts, gpu.power_watts);
    EXPECT_EQ(back.ecc_uncorrected, gpu.ecc_uncorrected);
  }
  EXPECT_THROW((void)nlohmann::json::object().get<Gpu>(), nlohmann::json::out_of_range);
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
    // The file appears complete, because the fake library reads it on another thread.
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
  } // killed; the kernel releases its flock
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

TEST_F(HostLocksTest, ALockIsItsOwnersAloneAndGoesWithItsRelease) {
  auto ann = daemon("/ann");
  ASSERT_TRUE(ann && ann->acquire("GPU-1", "abcde"));
  struct stat folder{}, file{};
  ASSERT_EQ(::stat(folder_.c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 07777, 01777u);
  ASSERT_EQ(::stat((folder_ / "GPU-1.lock").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  ann->release("GPU-1");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "GPU-1.lock")) << "other users could not lock it";
}

TEST_F(HostLocksTest, WhatAKilledDaemonLeftBehindGoesWithTheNextOne) {
  {
    auto ann = daemon("/ann");
    ASSERT_TRUE(ann && ann->acquire("GPU-1", "abcde") && ann->acquire("GPU-2", "abcde"));
    ASSERT_TRUE(ann->set_holder("GPU-2", {"/ann", "abcde", "boot", 4711, 99}));
  }
  ASSERT_TRUE(daemon("/ann", true));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "GPU-1.lock"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "GPU-2.lock")) << "its ranks live";
  ASSERT_TRUE(daemon("/ann", false));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "GPU-2.lock"));
}

// Runs `body` as another user of the host, and returns the exit code of its process.
int as_another_user(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(::setgid(60'001) != 0 || ::setuid(60'001) != 0 ? 99 : body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(HostLocksTest, AnotherUserCannotTakeChangeOrRemoveALock) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::filesystem::permissions(folder_.parent_path(), std::filesystem::perms(0755));
  auto ann = daemon("/ann");
  ASSERT_TRUE(ann && ann->acquire("GPU-1", "abcde"));
  const std::string file = (folder_ / "GPU-1.lock").string();
  EXPECT_EQ(as_another_user([&] {
              if (::open(file.c_str(), O_RDWR) >= 0 || ::open(file.c_str(), O_RDONLY) >= 0)
                return 1;
              if (::unlink(file.c_str()) == 0) return 2;
              if (::rename(file.c_str(), (file + ".gone").c_str()) == 0) return 3;
              auto his = HostLocks::open(folder_, "/his", [](const Holder&) { return false; });
              if (!his) return 4;
              const auto taken = his->acquire("GPU-1", "bbbbb");
              if (taken || taken.error().code != ErrorCode::kConflict) return 5;
              return his->acquire("GPU-2", "bbbbb") ? 0 : 6;
            }),
            0);
  // His nsad ended without a release. root takes the lock over, with a file of its own.
  ASSERT_TRUE(ann->acquire("GPU-2", "abcde"));
  struct stat info{};
  ASSERT_EQ(::stat((folder_ / "GPU-2.lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0u);
}

TEST_F(HostLocksTest, AFolderThatOthersRuleIsRefused) {
  const auto refused = [&](const char* why) {
    const auto locks = daemon("/ann");
    ASSERT_FALSE(locks) << why;
    EXPECT_EQ(locks.error().code, ErrorCode::kPermission) << locks.error().what;
    EXPECT_NE(locks.error().what.find(why), std::string::npos) << locks.error().what;
  };
  std::filesystem::create_directory(folder_);
  std::filesystem::permissions(folder_, std::filesystem::perms(0777));
  refused("sticky");
  std::filesystem::permissions(folder_, std::filesystem::perms(0755));
  EXPECT_TRUE(daemon("/ann")) << "others cannot write there";
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(folder_.c_str(), 60'001, 60'001), 0);
    refused("belongs to");
  }
  std::filesystem::remove(folder_);
  std::filesystem::create_directory(folder_.parent_path() / "elsewhere");
  std::filesystem::create_directory_symlink(folder_.parent_path() / "elsewhere", folder_);
  refused("link");
}

TEST_F(HostLocksTest, AFileOfTwoNamesIsNoLock) {
  auto ann = daemon("/ann");
  ASSERT_TRUE(ann);
  const auto precious = folder_.parent_path() / "precious";
  std::ofstream(precious) << "text";
  std::filesystem::create_hard_link(precious, folder_ / "GPU-1.lock");
  EXPECT_FALSE(ann->acquire("GPU-1", "abcde"));
  EXPECT_EQ(std::filesystem::file_size(precious), 4u);
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
