// What the ledger guarantees with a killed writer, a damaged file, or a full disk.
#include "common/base/file.h"
#include "daemon/store/open_database.h"
#include "tests/unit/store/store_fixture.h"

#include <csignal>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::store {

namespace {

TEST_F(StoreTest, AKilledWriterLosesNothingItHadCommitted) {
  for (int round = 0; round < 5; ++round) {
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto ledger = open();
      for (int64_t i = 1;; ++i) {
        Batch batch;
        batch.events = {event_row("abcde", "event")};
        if (!ledger || !ledger->commit(batch)) ::_exit(1);
        const int64_t sequence = batch.events[0].sequence;
        if (::write(told[1], &sequence, sizeof sequence) != sizeof sequence) ::_exit(1);
      }
    }
    ::close(told[1]);
    int64_t committed = 0;
    for (int i = 0; i < 20 + round * 7; ++i)
      ASSERT_EQ(::read(told[0], &committed, sizeof committed), ssize_t{sizeof committed});
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    int64_t more = 0;
    while (::read(told[0], &more, sizeof more) == ssize_t{sizeof more})
      committed = more; // what it reported before it died counts as well
    ::close(told[0]);
    ASSERT_TRUE(WIFSIGNALED(status));

    auto ledger = open();
    ASSERT_TRUE(ledger) << ledger.error().what;
    EXPECT_TRUE(ledger->opened().moved_aside.empty());
    const auto events = ledger->events("", 0, -1);
    ASSERT_TRUE(events);
    ASSERT_FALSE(events->empty());
    EXPECT_GE(events->back().sequence, committed);
  }
}

TEST_F(StoreTest, ADamagedLedgerIsMovedAsideAndItsBackupRestored) {
  {
    auto ledger = open();
    ASSERT_TRUE(ledger);
    Batch batch;
    batch.events = {event_row("abcde", "kept")};
    ASSERT_TRUE(ledger->commit(batch));
    ASSERT_TRUE(ledger->back_up());
    Batch later;
    later.events = {event_row("abcde", "after-the-backup")};
    ASSERT_TRUE(ledger->commit(later));
  }
  {
    UniqueFd file(::open((folder_ / "ledger.db").c_str(), O_WRONLY | O_CLOEXEC));
    const std::string garbage(8192, 'x');
    ASSERT_EQ(::pwrite(file.get(), garbage.data(), garbage.size(), 0),
              static_cast<ssize_t>(garbage.size()));
  }
  auto ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;
  EXPECT_FALSE(ledger->opened().moved_aside.empty());
  EXPECT_TRUE(std::filesystem::exists(ledger->opened().moved_aside));
  EXPECT_FALSE(ledger->opened().restored.empty());
  const auto events = ledger->events("", 0, 10);
  ASSERT_TRUE(events);
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ(events->at(0).kind.view(), "kept");
}

TEST_F(StoreTest, ALedgerThatHasGoneIsNoticedAndItsBackupTaken) {
  const auto path = folder_ / "ledger.db";
  auto ledger = open();
  ASSERT_TRUE(ledger);
  EXPECT_FALSE(ledger->gone());
  ASSERT_TRUE(std::filesystem::remove(path));
  EXPECT_TRUE(ledger->gone());
  Batch batch;
  batch.events = {event_row("abcde", "after-it-went")};
  ASSERT_TRUE(ledger->commit(batch));
  ASSERT_TRUE(ledger->back_up()) << "what is still open holds all";
  for (const bool empty : {false, true}) {
    ledger = fail(ErrorCode::kUnavailable, "closed");
    std::filesystem::remove(path);
    if (empty) {
      ASSERT_TRUE(write_file_atomic(path, ""));
    }
    ledger = open();
    ASSERT_TRUE(ledger) << ledger.error().what;
    EXPECT_FALSE(ledger->opened().restored.empty());
    const auto events = ledger->events("", 0, 10);
    ASSERT_TRUE(events);
    ASSERT_EQ(events->size(), 1u);
    EXPECT_EQ(events->at(0).kind.view(), "after-it-went");
  }
}

TEST_F(StoreTest, ADamagedLedgerWithoutABackupStartsEmptyAndSaysSo) {
  ASSERT_TRUE(write_file_atomic(folder_ / "ledger.db", std::string(10'000, 'x')));
  auto ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;
  EXPECT_FALSE(ledger->opened().moved_aside.empty());
  EXPECT_TRUE(ledger->opened().restored.empty());
  EXPECT_TRUE(ledger->events("", 0, 10)->empty());
}

// A tmpfs of 24 MiB. The tests are skipped if mounting is not allowed.
class FullDiskTest : public StoreTest {
protected:
  void SetUp() override {
    mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=24m") == 0;
    if (!mounted_) GTEST_SKIP() << "mounting a small tmpfs needs root";
  }
  void TearDown() override {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  void fill(const char* name) {
    UniqueFd file(
        ::open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const std::string block(65536, 'b');
    while (::write(file.get(), block.data(), block.size()) > 0) {
    }
  }
  bool mounted_ = false;
};

TEST_F(FullDiskTest, EventsAreWrittenOnAFullDisk) {
  auto ledger = open(2 << 20);
  ASSERT_TRUE(ledger) << ledger.error().what;
  ASSERT_TRUE(ledger->reserve().held());
  fill("ballast");
  // More events than stopping and restarting need. They do not use up the reserve.
  for (int i = 0; i < 300; ++i) {
    Batch batch;
    batch.events = {event_row("abcde", "restart")};
    const auto done = ledger->commit(batch);
    ASSERT_TRUE(done) << "event " << i << ": " << done.error().what;
  }
  EXPECT_TRUE(ledger->reserve().held());
  // The files of an attempt also need space. The release of the reserve provides it.
  EXPECT_FALSE(write_file_atomic(folder_ / "launch.json", std::string(100'000, 'l')));
  EXPECT_TRUE(ledger->reserve().release());
  EXPECT_TRUE(write_file_atomic(folder_ / "launch.json", std::string(100'000, 'l')));
  // When there is space again, the reserve is allocated again.
  std::filesystem::remove(folder_ / "ballast");
  EXPECT_TRUE(ledger->reserve().hold());
}

TEST_F(FullDiskTest, ALedgerOpensOnAFullDisk) {
  {
    auto ledger = open(2 << 20);
    ASSERT_TRUE(ledger);
    Batch batch;
    batch.events = {event_row("abcde", "before")};
    ASSERT_TRUE(ledger->commit(batch));
  }
  std::filesystem::remove(folder_ / "reserve");
  fill("ballast");
  auto ledger = open(2 << 20);
  ASSERT_TRUE(ledger) << ledger.error().what;
  EXPECT_FALSE(ledger->reserve().held());
  EXPECT_EQ(ledger->events("", 0, 10)->size(), 1u);
}

} // namespace

} // namespace nsa::store
