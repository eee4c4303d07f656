// What users see of runs that have ended, even if their rows are damaged.
#include "common/base/text.h"
#include "common/wire/run_row.h"
#include "daemon/queries/stored_runs.h"
#include "daemon/run_metrics/shown_run.h"
#include "tests/unit/store/store_fixture.h"

namespace nsa::control {

namespace {

class StoredRunsTest : public store::StoreTest {
protected:
  // Writes five completed runs, the newest last.
  void fill(store::Ledger& ledger) {
    store::Batch batch;
    for (const char* id : {"aaaaa", "bbbbb", "ccccc", "ddddd", "eeeee"}) {
      batch.runs.push_back(run_row(id, id[0]));
      wire::RunSummary summary;
      summary.id = id;
      summary.name = batch.runs.back().name;
      summary.state = wire::RunState::kCompleted;
      summary.ended_at = 1000;
      summary.tags = {"a"};
      store::RunProgressRow& row = batch.progress.emplace_back();
      show(summary, row);
      row.open = false;
    }
    ASSERT_TRUE(ledger.commit(batch));
  }
};

std::vector<wire::RunSummary> listed(const std::vector<store::ListedRow>& rows) {
  std::vector<std::string> texts;
  for (const store::ListedRow& row : rows)
    texts.push_back(row.text);
  return wire::read_rows("{\"items\":[" + join(texts, ",") + "]}").value();
}

TEST_F(StoredRunsTest, ComeBackAsTheyWereShown) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  fill(*ledger);
  StoredRuns runs(*ledger);
  const auto rows = runs.rows(10);
  ASSERT_TRUE(rows && rows->size() == 5);
  EXPECT_EQ(listed(*rows)[0].id, "eeeee");
  EXPECT_EQ(listed(*rows)[0].tags, std::vector<std::string>{"a"});
  const auto page = runs.summaries(2, rows->at(2));
  ASSERT_TRUE(page && page->size() == 2);
  EXPECT_EQ(page->at(0).summary.id, "bbbbb");
  EXPECT_EQ(page->at(0).summary.ended_at, 1000);
  EXPECT_EQ(runs.summary_of(**ledger->run("ccccc")).name, "name-ccccc");
}

TEST_F(StoredRunsTest, ADamagedOneIsShownAsSuchAndCostsNoList) {
  {
    auto ledger = open();
    ASSERT_TRUE(ledger);
    fill(*ledger);
  }
  change("UPDATE runs SET summary='{\"summary\":{\"step\":\"seven\"}}' WHERE id='aaaaa'");
  change("UPDATE runs SET list_row='" + nested() + "' WHERE id='bbbbb'");
  change("UPDATE runs SET spec='" + nested() + "' WHERE id='ddddd'");
  auto ledger = open();
  ASSERT_TRUE(ledger);
  StoredRuns runs(*ledger);
  const auto rows = runs.rows(10);
  ASSERT_TRUE(rows) << rows.error().what;
  const auto list = listed(*rows);
  ASSERT_EQ(list.size(), 5u);
  EXPECT_EQ(list[2].state, wire::RunState::kCompleted);
  EXPECT_EQ(list[3].id, "bbbbb");
  EXPECT_EQ(list[3].state, wire::RunState::kDamaged);
  EXPECT_EQ(list[3].name, "name-bbbbb");
  EXPECT_EQ(runs.rows(10, rows->at(3))->size(), 1u) << "the next page begins behind it";

  const auto summaries = runs.summaries(10);
  ASSERT_TRUE(summaries && summaries->size() == 5u);
  EXPECT_EQ(summaries->at(4).summary.id, "aaaaa");
  EXPECT_EQ(summaries->at(4).summary.user, "ann");
  EXPECT_EQ(summaries->at(4).summary.reason,
            "ledger.db, run aaaaa, column summary has the wrong shape: "
            "type must be number, but is string");
  const wire::RunSummary spec = runs.summary_of(**ledger->run("ddddd"));
  EXPECT_EQ(spec.state, wire::RunState::kDamaged);
  EXPECT_NE(spec.reason.find("column spec, line 1, column 65"), std::string::npos);

  // Once runs are set aside, their own rows say why.
  store::Batch aside;
  aside.damaged_runs = ledger->take_damaged();
  ASSERT_EQ(aside.damaged_runs.size(), 3u);
  for (store::DamagedRun& run : aside.damaged_runs)
    run.list_row = list_row(damaged_summary(ledger->label(run.run)->value(), run.why));
  ASSERT_TRUE(ledger->commit(aside));
  EXPECT_EQ(runs.summary_of(**ledger->run("bbbbb")).reason,
            "ledger.db, run bbbbb, column list_row is no row of a list");
  EXPECT_EQ(listed(*runs.rows(10))[4].state, wire::RunState::kDamaged);
  EXPECT_TRUE(ledger->take_damaged().empty());
}

} // namespace

} // namespace nsa::control
