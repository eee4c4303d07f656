// Log lines keep their exact bytes when they are cut and rotated, in floods and on full disks.
#include "tests/unit/shim/shim_harness.h"

#include "common/base/file.h"
#include "daemon/shim/cri.h"
#include "daemon/shim/rank_log.h"

#include <csignal>
#include <fstream>
#include <random>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

namespace nsa::shim::test {
namespace {

namespace fs = std::filesystem;
using wire::MessageType;

constexpr WallTime kTime{1'770'000'000'123'456'789};

// Returns what the rank wrote, from the log lines of one stream.
std::string payload(const std::string& lines, const std::string& stream = "stdout") {
  std::string text;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    const std::string line = lines.substr(at, end - at);
    if (line.substr(31, 6) == stream) {
      text += line.substr(kCriPrefixBytes);
      if (line[38] == 'F') text += '\n';
    }
    at = end + 1;
  }
  return text;
}

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "nsa-log-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Folder() {
    ::umount2(path.c_str(), MNT_DETACH); // in case a test mounted a file system there
    std::error_code error;
    fs::remove_all(path, error);
  }
  std::string log() const { return (path / "rank-0.log").string(); }
  fs::path path;
};

// Mounts a file system of `size` in a new mount namespace of this process. Returns false without
// root.
bool mount_small(const fs::path& where, const std::string& size) {
  static const bool own = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return own && ::mount("none", where.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
}

TEST(Cri, WritesTheFormat) {
  CriFormatter out(Stream::kStdout), err(Stream::kStderr);
  std::string lines;
  out.feed("hello\n\nha", kTime, lines);
  err.feed("oh\n", kTime, lines);
  EXPECT_EQ(lines, "2026-02-02T02:40:00.123456789Z stdout F hello\n"
                   "2026-02-02T02:40:00.123456789Z stdout F \n"
                   "2026-02-02T02:40:00.123456789Z stderr F oh\n");
  EXPECT_TRUE(out.has_partial());
  lines.clear();
  out.flush(kTime, lines);
  EXPECT_EQ(lines, "2026-02-02T02:40:00.123456789Z stdout P ha\n");
  lines.clear();
  out.feed("lf\n", kTime, lines);
  EXPECT_EQ(lines, "2026-02-02T02:40:00.123456789Z stdout F lf\n");
  EXPECT_EQ(cri_payload_bytes(lines), 3u);
}

TEST(Cri, KeepsEveryByteHoweverItIsCut) {
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < 400; ++i) { // lines around the length limit, empty lines, binary lines
    const size_t around[] = {
        0, 1, 80, kMaxLineBytes - 1, kMaxLineBytes, kMaxLineBytes + 1, 3 * kMaxLineBytes};
    std::string line(around[random() % 7], 'a');
    for (char& c : line)
      do
        c = static_cast<char>(random());
      while (c == '\n');
    text += line + (i < 399 ? "\n" : "");
  }
  for (const size_t most : {size_t{1}, size_t{100}, size_t{5000}, size_t{70000}}) {
    CriFormatter formatter(Stream::kStdout);
    std::string lines;
    const std::string_view whole = most == 1 ? std::string_view(text).substr(0, 200'000) : text;
    for (size_t at = 0; at < whole.size();) {
      const size_t take = std::min<size_t>(1 + random() % most, whole.size() - at);
      formatter.feed(whole.substr(at, take), kTime, lines);
      at += take;
    }
    formatter.flush(kTime, lines);
    EXPECT_EQ(payload(lines), whole) << "pieces up to " << most;
    EXPECT_EQ(cri_payload_bytes(lines), whole.size());
    for (size_t at = 0, end; at < lines.size(); at = end + 1) {
      end = lines.find('\n', at);
      ASSERT_LE(end - at, kCriPrefixBytes + kMaxLineBytes);
    }
  }
}

TEST(RankLog, RotatesBetweenLinesAndKeepsTheNewest) {
  const Folder folder;
  RankLog log(folder.log(), 1000, 3);
  std::string text;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "line " + std::to_string(i) + std::string(i % 30, '.') + "\n";
    log.feed(Stream::kStdout, line, kTime);
    text += line;
  }
  std::string kept;
  for (const char* part : {".2", ".1", ""}) {
    const auto content = read_file(folder.log() + part);
    ASSERT_TRUE(content) << part;
    EXPECT_LE(content->size(), 1000u);
    EXPECT_EQ(content->back(), '\n');
    EXPECT_GT(content->size(), *part ? 900u : 0u) << "rotated before it was full";
    kept += *content;
  }
  EXPECT_FALSE(fs::exists(folder.log() + ".3"));
  const std::string newest = payload(kept);
  EXPECT_GT(newest.size(), 600u);
  EXPECT_EQ(text.substr(text.size() - newest.size()), newest);
  EXPECT_EQ(log.take_dropped().bytes, 0u);
}

TEST(RankLog, GoesOnWhereAnEarlierOneStopped) {
  const Folder folder;
  RankLog(folder.log(), 1 << 20, 2).feed(Stream::kStdout, "one\n", kTime);
  RankLog(folder.log(), 1 << 20, 2).feed(Stream::kStdout, "two\n", kTime);
  EXPECT_EQ(payload(*read_file(folder.log())), "one\ntwo\n");
}

TEST(RankLog, FollowsNoLink) {
  const Folder folder;
  fs::create_symlink(folder.path / "elsewhere", folder.log());
  RankLog log(folder.log(), 1 << 20, 2);
  log.feed(Stream::kStdout, "secret\n", kTime);
  EXPECT_FALSE(fs::exists(folder.path / "elsewhere"));
  EXPECT_EQ(log.take_dropped().bytes, 7u);
}

TEST(RankLog, CountsWhatAFullDiskRefuses) {
  RankLog log("/dev/full", 1 << 20, 2); // every write gives ENOSPC
  log.feed(Stream::kStdout, "12345\n", kTime);
  log.feed(Stream::kStderr, "123\n", kTime);
  const auto dropped = log.take_dropped();
  EXPECT_EQ(dropped.bytes, 10u);
  EXPECT_EQ(dropped.why, "No space left on device");
  EXPECT_EQ(log.take_dropped().bytes, 0u);
}

TEST(RankLog, ComesBackWhenTheDiskDoes) {
  const Folder folder;
  if (!mount_small(folder.path, "64k")) GTEST_SKIP() << "a small file system needs root";
  RankLog log(folder.log(), 1 << 20, 2);
  uint64_t written = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string line = "line " + std::to_string(i) + std::string(60, '.') + "\n";
    log.feed(Stream::kStdout, line, kTime);
    written += line.size();
  }
  const uint64_t dropped = log.take_dropped().bytes;
  EXPECT_GT(dropped, 0u);
  const std::string full = *read_file(folder.log());
  EXPECT_EQ(full.back(), '\n') << "half a line was left";
  EXPECT_EQ(payload(full).size() + dropped, written);
  ASSERT_EQ(::mount("none", folder.path.c_str(), nullptr, MS_REMOUNT, "size=1m"), 0);
  log.feed(Stream::kStdout, "back\n", kTime);
  const std::string all = *read_file(folder.log());
  EXPECT_EQ(all.substr(0, full.size()), full);
  EXPECT_EQ(payload(all.substr(full.size())), "back\n");
  EXPECT_EQ(payload(all, "stderr"), "[nsa-shim: " + std::to_string(dropped) +
                                        " bytes of log were dropped: No space left on device]\n");
}

TEST(ShimLog, KeepsEveryByteOfAFlood) {
  Attempt attempt;
  attempt.plan.log_max_bytes = 8 << 20;
  attempt.plan.log_files = 10;
  attempt.fake(0, {"steps=3", "flood_mb=48", "log_lines=2", "log_bytes=20000"});
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  std::string expected;
  for (int step = 1; step <= 3; ++step) {
    for (int i = 0; i < 2; ++i) {
      std::string line = "rank 0 step " + std::to_string(step) + " line " + std::to_string(i);
      line.resize(20000, '.');
      expected += line + "\n";
    }
    for (int i = 0; step == 1 && i < 48 * 1024; ++i)
      expected += std::string(1023, 'x') + "\n";
  }
  EXPECT_TRUE(attempt.log_text(0) == expected) << "bytes were lost or changed";
  EXPECT_TRUE(fs::exists(attempt.plan.ranks[0].log_path + ".5"));
}

TEST(ShimLog, KeepsWhatADyingRankSaidLast) {
  Attempt attempt;
  attempt.plan.ranks[0].arguments = {
      "/bin/sh", "-c",
      "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; printf last; kill -9 $$"};
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  const std::string text = attempt.log_text(0); // the log is complete when the shim reports the end
  EXPECT_EQ(text.substr(0, 14), "line 0\nline 1\n");
  EXPECT_EQ(text.substr(text.size() - 13), "line 499\nlast");
}

TEST(ShimLog, ShowsALineThatIsNotFinished) {
  Attempt attempt;
  attempt.plan.ranks[0].arguments = {"/bin/sh", "-c", "printf 'working... '; sleep 1000"};
  attempt.start();
  Daemon nsad(attempt);
  EXPECT_TRUE(eventually([&] { return attempt.log_text(0) == "working... "; }));
}

TEST(ShimLog, AFullDiskNeverBlocksARank) {
  Attempt attempt;
  const fs::path logs = attempt.folder() / "logs";
  fs::create_directories(logs);
  if (!mount_small(logs, "128k")) GTEST_SKIP() << "a small file system needs root";
  attempt.fake(0, {"steps=100000", "step_ms=4", "log_lines=50", "log_bytes=200"});
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) {
    return d.find<wire::LogDropped>(MessageType::kLogDropped).has_value();
  }));
  const auto dropped = nsad.find<wire::LogDropped>(MessageType::kLogDropped);
  EXPECT_GT(dropped->bytes, 0u);
  EXPECT_EQ(dropped->why, "No space left on device");
  const uint64_t step = nsad.pages().at(0).read_host()->step;
  EXPECT_TRUE(eventually([&] { return nsad.pages().at(0).read_host()->step > step + 20; }))
      << "the rank is blocked";
  ASSERT_EQ(::mount("none", logs.c_str(), nullptr, MS_REMOUNT, "size=64m"), 0);
  EXPECT_TRUE(eventually([&] {
    const auto log = read_file(attempt.plan.ranks[0].log_path);
    return log && log->find("bytes of log were dropped: No space left") != std::string::npos;
  }));
  ASSERT_TRUE(nsad.client().kill_ranks("test"));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  ASSERT_TRUE(nsad.client().release());
  EXPECT_TRUE(eventually([&] { return attempt.shim_ended(); }));
  EXPECT_EQ(::umount(logs.c_str()), 0);
}

} // namespace
} // namespace nsa::shim::test
