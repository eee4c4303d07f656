// Whose runs they are, who made which request, and who may read the files.
#include "daemon/store/telemetry.h"
#include "tests/unit/store/store_fixture.h"

#include <fstream>
#include <sys/stat.h>

namespace nsa::store {

namespace {

TEST_F(StoreTest, ANameMeansAllRunsThatHaveItAndTheAskersFirst) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  for (const auto& [id, at, uid] :
       {std::tuple("aaaaa", 1, 7), std::tuple("bbbbb", 2, 8), std::tuple("ccccc", 3, 7)}) {
    batch.runs.push_back(run_row(id, at));
    batch.runs.back().name = "same";
    batch.runs.back().uid = uid;
  }
  ASSERT_TRUE(ledger->commit(batch));
  const auto everybody = ledger->find("same");
  ASSERT_TRUE(everybody);
  ASSERT_EQ(everybody->runs.size(), 3u);
  EXPECT_EQ(everybody->runs[0].id, "ccccc") << "newest first";
  EXPECT_FALSE(everybody->by_prefix);
  const auto own = ledger->find("same", 8);
  ASSERT_EQ(own->runs.size(), 1u);
  EXPECT_EQ(own->runs[0].id, "bbbbb");
  EXPECT_EQ(own->runs[0].uid, 8);
  EXPECT_EQ(ledger->find("@last", 8)->runs[0].id, "bbbbb");
  EXPECT_EQ(ledger->find("same", 9)->runs.size(), 3u) << "who has none means somebody else's";
  EXPECT_EQ(ledger->find("aaaaa", 8)->runs[0].uid, 7) << "an id is an id";
}

AuditRow audit_row(int64_t uid, const std::string& verb, const RunId& run = "abcde",
                   int64_t owner = 7) {
  AuditRow a;
  a.uid = uid;
  a.user = "user-" + std::to_string(uid);
  a.verb = verb;
  a.run = run;
  a.owner = owner;
  a.result = wire::RequestResult::kDone;
  return a;
}

TEST_F(StoreTest, TheAuditOutlivesItsRunAndIsReadByWhomItConcerns) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.runs = {run_row("abcde")};
  batch.audit = {audit_row(7, "submit"), audit_row(8, "cancel"),
                 audit_row(9, "submit", "other", 9)};
  batch.audit[1].result = wire::RequestResult::kRefused;
  batch.audit[1].why = "the run belongs to ann";
  ASSERT_TRUE(ledger->commit(batch));
  Batch removal;
  removal.removed = {"abcde"};
  removal.audit = {audit_row(7, "remove")};
  EXPECT_FALSE(removal.empty());
  ASSERT_TRUE(ledger->commit(removal));
  const auto verbs = [&](const RunId& run, std::optional<int64_t> uid, int limit = 100) {
    std::string list;
    const auto rows = ledger->audit(run, uid, limit);
    for (const AuditRow& a : *rows)
      list += a.verb + "/" + std::to_string(a.uid) + " ";
    return list;
  };
  EXPECT_EQ(verbs("", {}), "submit/7 cancel/8 submit/9 remove/7 ");
  EXPECT_EQ(verbs("abcde", {}), "submit/7 cancel/8 remove/7 ");
  EXPECT_EQ(verbs("", 8), "cancel/8 ");
  EXPECT_EQ(verbs("", 7), "submit/7 cancel/8 remove/7 ") << "what others asked of its runs, too";
  EXPECT_EQ(verbs("", {}, 1), "remove/7 ") << "the newest";
  EXPECT_EQ(ledger->audit("abcde", 8, 9)->at(0).why, "the run belongs to ann");
}

TEST_F(StoreTest, NobodyPushesAnotherUsersAuditOut) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.audit = {audit_row(7, "cancel")};
  ASSERT_TRUE(ledger->commit(batch));
  for (int round = 0; round < 3; ++round) {
    Batch flood;
    flood.audit.assign(5'120, audit_row(8, "stop"));
    ASSERT_TRUE(ledger->commit(flood));
  }
  EXPECT_EQ(ledger->audit("", 8, 100'000)->size(), 10'000u + (1 + 3 * 5'120) % 256)
      << "pruned at every 256th row";
  const auto all = ledger->audit("", {}, 100'000);
  EXPECT_EQ(all->front().uid, 7) << "the one row of another user is still there";
}

TEST_F(StoreTest, NobodyElseReadsTheLedgerOrWhatLiesBesideIt) {
  const mode_t before = ::umask(0);
  for (const char* name : {"ledger.db.backup-2", "ledger.db.corrupt-1-wal"}) // of an older nsad
    std::ofstream(folder_ / name) << "old";
  {
    auto ledger = open();
    auto telemetry = Telemetry::open(folder_);
    ASSERT_TRUE(ledger && telemetry);
    Batch batch;
    batch.runs = {run_row("abcde")};
    ASSERT_TRUE(ledger->commit(batch));
    ASSERT_TRUE(ledger->back_up());
    int seen = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      struct stat info{};
      ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 07777, S_ISDIR(info.st_mode) ? 0700u : 0600u) << entry.path();
      ++seen;
    }
    EXPECT_GE(seen, 7) << "two databases, their logs, three copies";
  }
  // The same holds for a restored ledger.
  std::ofstream(folder_ / "ledger.db", std::ios::trunc) << "no database at all, and long enough";
  std::filesystem::remove(folder_ / "ledger.db-wal");
  ASSERT_TRUE(open());
  struct stat info{};
  ASSERT_EQ(::stat((folder_ / "ledger.db").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  ::umask(before);
}

} // namespace

} // namespace nsa::store
