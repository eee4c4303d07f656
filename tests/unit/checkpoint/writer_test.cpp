// The checkpoint writer on full disks, when it is killed, and with damaged older checkpoints.
#include "worker/checkpoint/writer.h"

#include "common/base/checksum.h"
#include "common/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WriterTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "nsa-writer-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Snapshot snapshot(uint64_t step, size_t floats = 1000, bool finite = true) {
    auto values = std::make_shared<std::vector<float>>(floats, float(step));
    Snapshot s;
    s.manifest.run_id = "abcde";
    s.manifest.step = step;
    s.manifest.tokens = step * 10;
    s.manifest.finite = finite;
    s.files = {
        {"model.safetensors",
         {{"w", safetensors::DataType::kF32, {int64_t(floats)}, std::as_bytes(std::span(*values))}},
         {}}};
    s.memory = values;
    return s;
  }

  std::unique_ptr<Writer> open(const fs::path& folder, Retention retention = {}) {
    auto writer =
        Writer::open(folder, retention, [this](const Report& r) { reports_.push_back(r); });
    EXPECT_TRUE(writer) << writer.error().what;
    return std::move(*writer);
  }
  std::vector<uint64_t> steps_present(const fs::path& folder) {
    std::vector<uint64_t> steps;
    for (const auto& found : manifest::list(folder, true)) {
      EXPECT_EQ(found.problem, "");
      steps.push_back(found.step);
    }
    return steps;
  }

  fs::path folder_;
  std::vector<Report> reports_; // read only after wait_idle()
};

TEST_F(WriterTest, WritesWhatVerifiesAndReportsIt) {
  auto writer = open(folder_);
  writer->start(snapshot(40));
  writer->wait_idle();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_FALSE(reports_[0].error);
  EXPECT_EQ(reports_[0].folder, folder_ / "step-00000040");
  EXPECT_EQ(reports_[0].manifest_checksum,
            *checksum_file_hex(folder_ / "step-00000040" / manifest::kManifestName));
  const auto choice = manifest::choose_newest_verified(folder_);
  ASSERT_TRUE(choice.chosen);
  EXPECT_EQ(choice.chosen->manifest->tokens, 400u);
  auto reader = safetensors::Reader::open(choice.chosen->folder / "model.safetensors");
  std::vector<float> w(1000);
  ASSERT_TRUE(
      reader->read("w", safetensors::DataType::kF32, {1000}, std::as_writable_bytes(std::span(w))));
  EXPECT_EQ(w[999], 40.0f);
}

TEST_F(WriterTest, RetentionAppliesToOlderAttemptsToo) {
  {
    auto writer = open(folder_, {.keep_last = 100});
    for (uint64_t step = 10; step <= 50; step += 10) {
      writer->start(snapshot(step));
      writer->wait_idle();
    }
  }
  auto writer = open(folder_, {.keep_last = 2, .keep_every_steps = 20});
  writer->start(snapshot(60));
  writer->wait_idle();
  EXPECT_THAT(steps_present(folder_), ElementsAre(60, 50, 40, 20));
  EXPECT_THAT(reports_.back().deleted, ElementsAre(30, 10));
}

// Distrusted checkpoints are deleted when as many newer good ones exist as retention keeps.
// keep_every_steps does not change this.
TEST_F(WriterTest, DistrustedCheckpointsGoWithRetention) {
  const auto write = [&](Writer& writer, uint64_t step) {
    writer.start(snapshot(step));
    writer.wait_idle();
  };
  const auto aside = [&](uint64_t step) {
    return fs::exists(folder_ / (manifest::folder_name(step) + ".distrusted"));
  };
  {
    auto writer = open(folder_, {.keep_last = 2});
    for (const uint64_t step : {10, 20, 30})
      write(*writer, step);
    std::vector<manifest::Distrust> distrusted{{0, 20, "its sums are of different steps"}};
    manifest::Choice choice = manifest::choose_newest_verified(folder_, distrusted);
    manifest::set_aside(choice, distrusted);
  }
  ASSERT_TRUE(aside(20) && aside(30));
  EXPECT_FALSE(manifest::choose_newest_verified(folder_).chosen);
  auto writer = open(folder_, {.keep_last = 2, .keep_every_steps = 10});
  EXPECT_TRUE(aside(20) && aside(30)) << "a new attempt deletes nothing yet";
  write(*writer, 20);
  write(*writer, 30);
  EXPECT_TRUE(aside(20) && aside(30)) << "one good one is newer than the older of them";
  write(*writer, 40);
  EXPECT_FALSE(aside(20));
  EXPECT_TRUE(aside(30));
  write(*writer, 50);
  EXPECT_FALSE(aside(30));
  EXPECT_THAT(steps_present(folder_), ElementsAre(50, 40, 30, 20));
}

TEST_F(WriterTest, DivergedCheckpointsDoNotPushOutTheLastFiniteOne) {
  auto writer = open(folder_, {.keep_last = 1});
  writer->start(snapshot(10));
  writer->wait_idle();
  for (uint64_t step = 20; step <= 40; step += 10) {
    writer->start(snapshot(step, 1000, false));
    writer->wait_idle();
  }
  EXPECT_THAT(steps_present(folder_), ElementsAre(40, 10));
}

TEST_F(WriterTest, ReplacesADamagedCheckpointOfTheSameStep) {
  auto writer = open(folder_);
  writer->start(snapshot(10));
  writer->wait_idle();
  fs::resize_file(folder_ / "step-00000010" / "model.safetensors", 3);
  ASSERT_FALSE(manifest::choose_newest_verified(folder_).chosen);
  writer->start(snapshot(10));
  writer->wait_idle();
  EXPECT_FALSE(reports_.back().error) << reports_.back().error->what;
  EXPECT_THAT(steps_present(folder_), ElementsAre(10));
  EXPECT_FALSE(fs::exists(folder_ / "step-00000010.tmp"));
}

TEST_F(WriterTest, RemovesWhatADeadWriterLeft) {
  fs::create_directories(folder_ / "step-00000010.tmp");
  fs::create_directories(folder_ / "notes.tmp"); // this folder is not ours
  auto writer = open(folder_);
  EXPECT_FALSE(fs::exists(folder_ / "step-00000010.tmp"));
  EXPECT_TRUE(fs::exists(folder_ / "notes.tmp"));
}

TEST_F(WriterTest, FileThatCannotGrowCostsOneCheckpointOnly) {
  auto writer = open(folder_);
  writer->start(snapshot(10));
  writer->wait_idle();
  // A limit on the size of files makes write(2) fail half-way, as a full disk does.
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small{65536, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  writer->start(snapshot(20, 1 << 20));
  writer->wait_idle();
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, SIG_DFL);
  ASSERT_TRUE(reports_.back().error);
  EXPECT_THAT(reports_.back().error->what, HasSubstr("model.safetensors"));
  EXPECT_THAT(steps_present(folder_), ElementsAre(10));
  EXPECT_FALSE(fs::exists(folder_ / "step-00000020.tmp")) << "its space is given back";
  writer->start(snapshot(30));
  writer->wait_idle();
  EXPECT_THAT(steps_present(folder_), ElementsAre(30, 10));
}

TEST_F(WriterTest, FullDiskIsSaidAndSurvived) {
  const fs::path disk = folder_ / "disk";
  fs::create_directories(disk);
  if (::mount("nsa-test", disk.c_str(), "tmpfs", 0, "size=256k") != 0)
    GTEST_SKIP() << "cannot mount a small tmpfs (needs root): " << std::strerror(errno);
  {
    auto writer = open(disk / "checkpoints");
    writer->start(snapshot(10, 10000));
    writer->wait_idle();
    writer->start(snapshot(20, 60000));
    writer->wait_idle();
    ASSERT_TRUE(reports_.back().error);
    EXPECT_EQ(reports_.back().error->code, ErrorCode::kExhausted);
    EXPECT_THAT(reports_.back().error->next, HasSubstr("free space"));
    EXPECT_THAT(steps_present(disk / "checkpoints"), ElementsAre(10));
    writer->start(snapshot(30, 10000));
    writer->wait_idle();
    EXPECT_FALSE(reports_.back().error);
  }
  ::umount2(disk.c_str(), MNT_DETACH);
}

// A writer may be killed at any moment. Every checkpoint with a final name verifies, and nothing
// else has such a name.
TEST_F(WriterTest, KilledAtAnyMomentLeavesOnlyWholeCheckpoints) {
  for (int round = 0; round < 12; ++round) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto writer = Writer::open(folder_, {.keep_last = 2}, nullptr);
      for (uint64_t step = uint64_t(round) * 1000 + 1;; ++step) {
        (*writer)->start(snapshot(step, 200000));
        (*writer)->wait_idle();
      }
    }
    // After the writer has begun, the kill is not synchronised on purpose, so each round hits
    // another place. The last round waits for a complete checkpoint, even on a slow machine.
    const std::string first = manifest::folder_name(uint64_t(round) * 1000 + 1);
    const MonotonicTime end = MonotonicTime::now() + std::chrono::seconds(60);
    while (!fs::exists(folder_ / first) && MonotonicTime::now() < end &&
           (round == 11 || !fs::exists(folder_ / (first + ".tmp"))))
      ::usleep(200);
    ::usleep(useconds_t(round * 1700));
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    for (const auto& found : manifest::list(folder_, true))
      EXPECT_EQ(found.problem, "") << "round " << round;
  }
  EXPECT_TRUE(manifest::choose_newest_verified(folder_).chosen);
}

} // namespace
} // namespace nsa::checkpoint
