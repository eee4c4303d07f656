#include "common/base/file.h"
#include "common/base/text.h"
#include "common/wire/run_row.h"
#include "daemon/store/open_database.h"
#include "daemon/store/schema.h"
#include "tests/unit/store/store_fixture.h"

#include <sqlite3.h>

namespace nsa::store {

namespace {

TEST_F(StoreTest, RowsComeBackAsWritten) {
  auto ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;
  Batch batch;
  batch.runs = {run_row("abcde")};
  batch.progress = {progress_row("abcde", "running", true)};
  batch.progress[0].memory = {{"steps", 12}};
  AttemptRow attempt;
  attempt.run = "abcde";
  attempt.attempt = 1;
  attempt.state = "live";
  attempt.first_step = 40;
  attempt.provenance = {{"build", "1"}};
  attempt.token = "secret";
  batch.attempts = {attempt};
  batch.toggles = {{"abcde", 1, "attention.kernels", "auto", "aten", wire::ToggleOrigin::kDefault}};
  CheckpointRow checkpoint;
  checkpoint.run = "abcde";
  checkpoint.step = 30;
  checkpoint.state = wire::CheckpointState::kVerified;
  batch.checkpoints = {checkpoint};
  batch.events = {event_row("abcde", "submitted"), event_row("abcde", "note", false)};
  batch.shim_sequences = {{"abcde", 1, 17}};
  ASSERT_TRUE(ledger->commit(batch));
  EXPECT_EQ(batch.events[1].sequence, batch.events[0].sequence + 1);

  const auto stored = ledger->run("abcde");
  ASSERT_TRUE(stored && *stored);
  EXPECT_EQ((*stored)->row.spec.at("train").at("steps"), 10);
  EXPECT_EQ((*stored)->progress.state, wire::RunState::kRunning);
  EXPECT_EQ((*stored)->progress.shown.at("name"), "name-abcde");
  EXPECT_EQ((*stored)->progress.list_row, "[\"abcde\"]");
  EXPECT_EQ(ledger->label("abcde")->value().user, "ann");
  EXPECT_FALSE(*ledger->label("bcdef"));
  EXPECT_EQ((*stored)->progress.memory, (nlohmann::json{{"steps", 12}}));
  EXPECT_EQ(ledger->attempts("abcde")->at(0).first_step, 40u);
  EXPECT_EQ(*ledger->token("abcde", 1), "secret");
  EXPECT_EQ(ledger->toggles("abcde")->at(0).effective, "aten");
  EXPECT_EQ(ledger->checkpoints("abcde")->at(0).state, wire::CheckpointState::kVerified);
  EXPECT_EQ(*ledger->shim_sequence("abcde", 1), 17u);
  EXPECT_EQ(ledger->replayable("abcde")->size(), 1u) << "notes are not replayed";
  EXPECT_EQ(ledger->events("abcde", 0, 10)->size(), 2u);
  EXPECT_EQ(ledger->events("abcde", 0, -1)->at(0).kind.view(), "note");
  EXPECT_EQ(*ledger->open_runs(), std::vector<RunId>{"abcde"});
}

TEST_F(StoreTest, NodesOfAClusterComeBackAsWritten) {
  constexpr int64_t kDay = int64_t{24} * 3600 * 1'000'000'000;
  {
    auto ledger = open();
    ASSERT_TRUE(ledger) << ledger.error().what;
    Batch batch;
    batch.cluster_nodes = {{"b", "11", "12", 100, 200, 0}, {"a", "21", "", 100, 200, 150}};
    batch.join_tokens = {{"digest-1", 5 * kDay, ""}};
    ASSERT_TRUE(ledger->commit(batch));
    Batch used;
    used.cluster_nodes = {{"b", "12", "", 100, 300, 0}};
    used.join_tokens = {{"digest-1", 5 * kDay, "b"}};
    ASSERT_TRUE(ledger->commit(used));
    ASSERT_TRUE(ledger->note_node("host", "boot", "1", WallTime{7}));
    EXPECT_EQ(*ledger->drained_at("host"), 0);
    Batch drained;
    drained.drains = {{"host", 42}};
    ASSERT_TRUE(ledger->commit(drained));
  }
  auto ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;
  ASSERT_TRUE(ledger->note_node("host", "boot", "2", WallTime{8}));
  EXPECT_EQ(*ledger->drained_at("host"), 42) << "a restart does not undrain";
  EXPECT_EQ(*ledger->drained_at("nobody"), 0);
  const auto nodes = ledger->cluster_nodes();
  ASSERT_TRUE(nodes);
  ASSERT_EQ(nodes->size(), 2u);
  EXPECT_EQ(nodes->at(0).name, "a");
  EXPECT_EQ(nodes->at(0).removed_at, 150);
  EXPECT_EQ(nodes->at(1).serial, "12");
  EXPECT_EQ(nodes->at(1).next_serial, "");
  EXPECT_EQ(nodes->at(1).expires_at, 300);
  EXPECT_EQ((*ledger->join_token("digest-1"))->used_by, "b");
  EXPECT_FALSE(*ledger->join_token("digest-2"));
  // An old token is deleted a day after its end, when a new token is made.
  Batch later;
  later.join_tokens = {{"digest-2", 6 * kDay + 1, ""}};
  ASSERT_TRUE(ledger->commit(later));
  EXPECT_FALSE(*ledger->join_token("digest-1"));
  EXPECT_TRUE(*ledger->join_token("digest-2"));
}

TEST_F(StoreTest, AShimSequenceNeverGoesBack) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.runs = {run_row("abcde")};
  AttemptRow attempt;
  attempt.run = "abcde";
  attempt.attempt = 1;
  batch.attempts = {attempt};
  batch.shim_sequences = {{"abcde", 1, 17}, {"abcde", 1, 9}};
  ASSERT_TRUE(ledger->commit(batch));
  EXPECT_EQ(*ledger->shim_sequence("abcde", 1), 17u);
}

TEST_F(StoreTest, ABatchIsWrittenWholeOrNotAtAll) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.events = {event_row("abcde", "submitted")};
  // There is no such attempt, so a foreign key fails.
  batch.toggles = {{"nobod", 1, "x", "", "", {}}};
  EXPECT_FALSE(ledger->commit(batch));
  EXPECT_TRUE(ledger->events("", 0, 10)->empty());
  Batch good;
  good.events = {event_row("abcde", "submitted")};
  EXPECT_TRUE(ledger->commit(good)) << "the connection is usable afterwards";
}

TEST_F(StoreTest, RunsAreFoundByIdPrefixNameAndLast) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  EXPECT_EQ(ledger->find("@last").error().code, ErrorCode::kNotFound);
  Batch batch;
  batch.runs = {run_row("abcde", 1), run_row("abxyz", 2)};
  ASSERT_TRUE(ledger->commit(batch));
  const auto ids = [&](const std::string& text, std::optional<int64_t> uid = {}) {
    std::vector<RunId> list;
    const auto found = ledger->find(text, uid);
    for (const Found::Owned& run : found->runs)
      list.push_back(run.id);
    return list;
  };
  using Ids = std::vector<RunId>;
  EXPECT_EQ(ids("abcde"), Ids{"abcde"});
  EXPECT_EQ(ids("abc"), Ids{"abcde"});
  EXPECT_EQ(ids("name-abcde"), Ids{"abcde"});
  EXPECT_EQ(ids("@last"), Ids{"abxyz"});
  EXPECT_EQ(ids("ab"), (Ids{"abxyz", "abcde"}));
  EXPECT_TRUE(ledger->find("ab")->by_prefix);
  EXPECT_EQ(ledger->find("zzz").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ledger->find("%").error().code, ErrorCode::kNotFound) << "no pattern gets through";
}

TEST_F(StoreTest, RemovingARunRemovesAllOfIt) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.runs = {run_row("abcde"), run_row("bbbbb")};
  batch.events = {event_row("abcde", "submitted"), event_row("bbbbb", "submitted")};
  CheckpointRow checkpoint;
  checkpoint.run = "abcde";
  batch.checkpoints = {checkpoint};
  ASSERT_TRUE(ledger->commit(batch));
  Batch removal;
  removal.removed = {"abcde"};
  ASSERT_TRUE(ledger->commit(removal));
  EXPECT_FALSE(*ledger->run("abcde"));
  EXPECT_TRUE(ledger->checkpoints("abcde")->empty());
  EXPECT_EQ(ledger->events("", 0, 10)->size(), 1u);
}

TEST_F(StoreTest, WhatReadingACheckpointShowedLeavesTheRestOfItsRow) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.runs = {run_row("abcde")};
  CheckpointRow checkpoint;
  checkpoint.run = "abcde";
  checkpoint.step = 30;
  checkpoint.bytes = 77;
  checkpoint.written_at = 5;
  checkpoint.state = wire::CheckpointState::kUnverified;
  batch.checkpoints = {checkpoint};
  batch.checkpoint_states = {{"abcde", 30, "/c/30", wire::CheckpointState::kCorrupt, "a bit"},
                             {"abcde", 40, "/c/40", wire::CheckpointState::kVerified, ""}};
  ASSERT_TRUE(ledger->commit(batch));
  const auto rows = *ledger->checkpoints("abcde");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].state, wire::CheckpointState::kCorrupt);
  EXPECT_EQ(rows[1].problem, "a bit");
  EXPECT_EQ(rows[1].bytes, 77u);
  EXPECT_EQ(rows[1].written_at, 5);
  EXPECT_EQ(rows[0].state, wire::CheckpointState::kVerified);
  EXPECT_EQ(rows[0].folder, "/c/40");
  Batch only_states;
  only_states.checkpoint_states = {{"abcde", 30, "/c/30", wire::CheckpointState::kVerified, ""}};
  EXPECT_FALSE(only_states.empty());
  ASSERT_TRUE(ledger->commit(only_states));
  EXPECT_EQ(ledger->checkpoints("abcde")->at(1).problem, "");
}

TEST_F(StoreTest, ListsAreReadFromTheIndexAlone) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  for (int i = 0; i < 3; ++i) {
    const RunId id = "abcd" + std::to_string(i);
    batch.runs.push_back(run_row(id, i));
    batch.progress.push_back(progress_row(id, i == 1 ? "running" : "completed", i == 1));
  }
  ASSERT_TRUE(ledger->commit(batch));
  const auto rows = ledger->rows(10);
  ASSERT_TRUE(rows) << rows.error().what;
  ASSERT_EQ(rows->size(), 2u) << "those that have ended";
  EXPECT_GT(rows->at(0).submitted_at, rows->at(1).submitted_at);
  EXPECT_EQ(rows->at(0).text, "[\"abcd2\"]") << "as it was written";
  EXPECT_EQ(*ledger->run_of(rows->at(0)), "abcd2");
  EXPECT_EQ(*ledger->run_of({7, "[]"}), "");
  const std::string path = (folder_ / "x.db").string(); // the ledger's own file is locked
  auto raw = Database::open(path);
  ASSERT_TRUE(raw && migrate(*raw, path, WallTime{1}));
  auto plan =
      raw->prepare("EXPLAIN QUERY PLAN SELECT submitted_at,list_row,uid FROM runs INDEXED BY "
                   "runs_listed WHERE open=0 AND (submitted_at,list_row)<(7,'x') ORDER BY "
                   "submitted_at DESC,list_row DESC LIMIT 10");
  ASSERT_TRUE(plan && plan->step().value_or(false));
  EXPECT_NE(plan->text(3).find("USING COVERING INDEX runs_listed"), std::string::npos)
      << plan->text(3);
}

// A ledger with the first schema and two of its runs.
TEST_F(StoreTest, RunsOfAnOlderLedgerAreListedToo) {
  const std::string path = (folder_ / "ledger.db").string();
  {
    auto old = Database::open(path);
    ASSERT_TRUE(old);
    std::vector<EmbeddedFile> first(migration_files().begin(), migration_files().begin() + 2);
    ASSERT_TRUE(migrate(*old, path, WallTime{1}, first));
    ASSERT_TRUE(old->execute(
        "INSERT INTO runs (id,name,user,state,open,submitted_at,ended_at,run_file,file_name,folder,"
        "overrides,environment,spec,spec_digest,estimate,summary) VALUES ('abcde','old','ann',"
        "'failed',0,7,9,'','','','[]','{}','{}','','{}','{\"summary\":{\"reason\":\"why\","
        "\"step\":12,\"has_loss\":true,\"loss\":2.5}}'),('abcdf','empty','ann','queued',0,8,9,"
        "'','','','[]','{}','{}','','{}','{}')"));
  }
  auto ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;
  const auto rows = ledger->rows(10);
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 2u);
  const auto runs =
      wire::read_rows("{\"items\":[" + rows->at(0).text + "," + rows->at(1).text + "]}");
  ASSERT_TRUE(runs) << runs.error().what;
  EXPECT_EQ(runs->at(0).name, "empty");
  // Pages of rows: after the first row comes the second, and after that nothing.
  const auto first = ledger->rows(1);
  ASSERT_TRUE(first && first->size() == 1);
  EXPECT_EQ(ledger->rows(10, first->front())->size(), 1u);
  EXPECT_EQ(ledger->rows(10, first->front())->front().text, rows->at(1).text);
  EXPECT_TRUE(ledger->rows(10, rows->at(1))->empty());
  const auto page = ledger->ended_runs(1);
  ASSERT_TRUE(page && page->size() == 1);
  EXPECT_EQ(ledger->ended_runs(10, page->front().place)->size(), 1u);
  const wire::RunSummary* run = &runs->at(1);
  EXPECT_EQ(run->reason, "why");
  EXPECT_EQ(run->step, 12u);
  EXPECT_TRUE(run->has_loss);
  EXPECT_EQ(run->loss, 2.5);
  EXPECT_EQ(run->submitted_at, 7);
  EXPECT_EQ(run->user, "ann");
}

// Ledgers before schema 6 held the values of passed variables.
TEST_F(StoreTest, TheValuesOfPassedVariablesLeaveAnOlderLedgerAndItsBackup) {
  const std::string path = (folder_ / "ledger.db").string(), secret = "value-of-a-secret";
  {
    auto old = Database::open(path);
    ASSERT_TRUE(old);
    std::vector<EmbeddedFile> first(migration_files().begin(), migration_files().begin() + 5);
    ASSERT_TRUE(migrate(*old, path, WallTime{1}, first));
    ASSERT_TRUE(old->execute(
        "INSERT INTO runs (id,name,user,state,open,submitted_at,run_file,file_name,folder,"
        "overrides,environment,spec,spec_digest,estimate,summary) VALUES ('abcde','old','ann',"
        "'failed',0,7,'','','','[]','{\"TOKEN\":\"" +
        secret + "\"}','{}','','{}','{}')"));
  }
  {
    auto ledger = open();
    ASSERT_TRUE(ledger) << ledger.error().what;
    EXPECT_TRUE(ledger->run("abcde").value());
    EXPECT_TRUE(std::filesystem::exists(ledger->opened().backup));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_EQ(read_file(entry.path()).value_or("").find(secret), std::string::npos) << entry.path();
}

// Counts the instructions of SQLite's virtual machine on connections opened during its life. They
// show the cost of queries independently of the machine.
class InstructionCounter {
public:
  InstructionCounter() {
    count = 0;
    ::sqlite3_auto_extension(reinterpret_cast<void (*)()>(&watch));
  }
  ~InstructionCounter() { ::sqlite3_cancel_auto_extension(reinterpret_cast<void (*)()>(&watch)); }
  static inline int64_t count = 0;

private:
  static int watch(sqlite3* database, char**, const void*) {
    const auto counted = [](void*) {
      ++count;
      return 0;
    };
    ::sqlite3_progress_handler(database, 1, counted, nullptr);
    return SQLITE_OK;
  }
};

TEST_F(StoreTest, QueriesCostNoMoreInALargeLedger) {
  const InstructionCounter counter;
  auto ledger = open();
  ASSERT_TRUE(ledger);
  std::mt19937_64 random(7);
  int64_t before = 0;
  for (const int runs : {200, 4000}) {
    Batch batch;
    for (int i = 0; i < runs; ++i) {
      const RunId id = make_run_id(random);
      batch.runs.push_back(run_row(id, runs + i));
      batch.progress.push_back(progress_row(id, "completed", false));
      batch.events.push_back(event_row(id, "submitted"));
    }
    const RunId last = batch.runs.back().id;
    ASSERT_TRUE(ledger->commit(batch));
    InstructionCounter::count = 0;
    EXPECT_EQ(ledger->find("@last")->runs.at(0).id, last);
    EXPECT_TRUE(*ledger->run(last));
    EXPECT_EQ(ledger->events(last, 0, 10)->size(), 1u);
    EXPECT_EQ(ledger->ended_runs(50)->size(), 50u);
    EXPECT_TRUE(ledger->open_runs()->empty());
    if (before > 0) {
      EXPECT_LT(InstructionCounter::count, 2 * before) << "a query scans a table";
    }
    before = InstructionCounter::count;
    EXPECT_GT(before, 50);
  }
}

TEST_F(StoreTest, ANewerSchemaIsRefused) {
  {
    ASSERT_TRUE(open());
  }
  {
    auto raw = Database::open((folder_ / "ledger.db").string());
    ASSERT_TRUE(raw && raw->execute("PRAGMA user_version = 999"));
  }
  const auto again = open();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(again.error().what.find("999"), std::string::npos);
}

TEST_F(StoreTest, AnUpgradeBacksUpFirstAndAddsToWhatIsThere) {
  const std::vector<EmbeddedFile> first = {{"0001_a.sql", "CREATE TABLE a (x INTEGER) STRICT;"}};
  const std::vector<EmbeddedFile> both = {first[0],
                                          {"0002_b.sql", "ALTER TABLE a ADD COLUMN y INTEGER;"}};
  const std::string path = (folder_ / "x.db").string();
  auto database = Database::open(path);
  ASSERT_TRUE(database);
  ASSERT_TRUE(migrate(*database, path, WallTime{1}, first));
  ASSERT_TRUE(database->execute("INSERT INTO a VALUES (42)"));
  const auto change = migrate(*database, path, WallTime{2}, both);
  ASSERT_TRUE(change) << change.error().what;
  EXPECT_EQ(*database->integer("SELECT x FROM a WHERE y IS NULL"), 42);
  auto backup = Database::open(change->backup);
  ASSERT_TRUE(backup);
  EXPECT_EQ(*backup->integer("PRAGMA user_version"), 1);
  EXPECT_EQ(*backup->integer("SELECT x FROM a"), 42);
  const auto none = migrate(*database, path, WallTime{3}, both);
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->backup.empty()) << "nothing to upgrade, nothing to back up";
}

TEST_F(StoreTest, AnEditedMigrationIsNoticed) {
  const std::string path = (folder_ / "x.db").string();
  auto database = Database::open(path);
  ASSERT_TRUE(database);
  ASSERT_TRUE(migrate(*database, path, WallTime{1}, {{"0001_a.sql", "CREATE TABLE a (x) ;"}}));
  const auto edited =
      migrate(*database, path, WallTime{1}, {{"0001_a.sql", "CREATE TABLE a (y) ;"}});
  ASSERT_FALSE(edited);
  EXPECT_EQ(edited.error().code, ErrorCode::kCorrupt);
}

TEST_F(StoreTest, AMigrationThatFailsLeavesNothingBehind) {
  const std::string path = (folder_ / "x.db").string();
  auto database = Database::open(path);
  ASSERT_TRUE(database);
  EXPECT_FALSE(migrate(*database, path, WallTime{1},
                       {{"0001_a.sql", "CREATE TABLE a (x INTEGER) STRICT; nonsense;"}}));
  EXPECT_EQ(*database->integer("SELECT count(*) FROM sqlite_schema WHERE name='a'"), 0);
  EXPECT_EQ(*database->integer("PRAGMA user_version"), 0);
}

TEST_F(StoreTest, ATextMakesNoListTooLongToBeSent) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.events = {event_row("abcde", "note", false)};
  batch.events[0].text = std::string(2 << 20, 'x');
  ASSERT_TRUE(ledger->commit(batch));
  EXPECT_LT(ledger->events("abcde", 0, 10)->at(0).text.size(), size_t{100'000});
}

// A row that cannot be read sets its run aside. Lists, other runs and the start still work.
TEST_F(StoreTest, ADamagedRowSetsItsRunAside) {
  auto ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;
  Batch batch;
  for (const char* id : {"aaaaa", "bbbbb", "ccccc", "ddddd"}) {
    batch.runs.push_back(run_row(id, id[0]));
    batch.progress.push_back(progress_row(id, "completed", id[0] == 'd'));
    batch.events.push_back(event_row(id, "submitted"));
  }
  ASSERT_TRUE(ledger->commit(batch));
  ledger = fail(ErrorCode::kUnavailable, "closed, since it lets nobody else write");
  const std::string deep = nested();
  change("UPDATE runs SET spec='" + deep + "' WHERE id='aaaaa'");
  change("UPDATE runs SET summary='{' WHERE id='bbbbb'");
  change("UPDATE runs SET memory='{' WHERE id='ddddd'");
  change("UPDATE events SET detail='" + deep + "' WHERE run='ddddd'");
  change("UPDATE events SET attempt=2147483647 WHERE run='bbbbb'");
  change("UPDATE events SET at=9223372036854775807 WHERE run='ccccc'");
  ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;

  const auto ended = ledger->ended_runs(10);
  ASSERT_TRUE(ended && ended->size() == 3u);
  EXPECT_EQ(ended->at(0).damage, "");
  EXPECT_NE(ended->at(1).damage.find("ledger.db, run bbbbb, column summary, line 1"),
            std::string::npos);
  const auto stored = ledger->run("aaaaa");
  ASSERT_TRUE(stored && *stored);
  EXPECT_EQ((*stored)->damage,
            "ledger.db, run aaaaa, column spec, line 1, column 65: nested deeper than 64 levels");
  const auto open_run = ledger->run("ddddd");
  ASSERT_TRUE(open_run && *open_run);
  EXPECT_NE((*open_run)->damage.find("ledger.db, run ddddd, column memory, line 1"),
            std::string::npos);
  const auto replayed = ledger->replayable("ddddd");
  ASSERT_FALSE(replayed);
  EXPECT_NE(replayed.error().what.find("column detail, line 1, column 65"), std::string::npos);
  EXPECT_NE(ledger->replayable("bbbbb").error().what.find("column attempt is 2147483647"),
            std::string::npos);
  EXPECT_NE(ledger->replayable("ccccc").error().what.find("column at is 9223372036854775807"),
            std::string::npos);
  const auto shown = ledger->events("ddddd", 0, 10);
  ASSERT_TRUE(shown && shown->size() == 1u);
  EXPECT_NE(shown->at(0).detail.dump().find("nested deeper"), std::string::npos);

  auto damaged = ledger->take_damaged();
  ASSERT_EQ(damaged.size(), 2u) << "each once; an open one is its owner's to set aside";
  EXPECT_TRUE(ledger->take_damaged().empty());
  Batch aside;
  aside.damaged_runs = damaged;
  aside.damaged_runs.push_back({"ddddd", "its events do not give its state", "[\"ddddd\",1]"});
  aside.events = {event_row("ddddd", "set_aside", false)};
  ASSERT_TRUE(ledger->commit(aside));
  EXPECT_TRUE(ledger->open_runs()->empty());
  EXPECT_EQ((*ledger->run("ddddd"))->progress.state, wire::RunState::kDamaged);
  EXPECT_EQ((*ledger->label("ddddd"))->list_row, "[\"ddddd\",1]");
  EXPECT_EQ((*ledger->run("ccccc"))->progress.state, wire::RunState::kCompleted);
  (void)ledger->ended_runs(10);
  EXPECT_TRUE(ledger->take_damaged().empty()) << "told once";
}

} // namespace

} // namespace nsa::store
