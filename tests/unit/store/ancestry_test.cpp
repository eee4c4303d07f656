// Whose weights a run began with.
#include "tests/unit/store/store_fixture.h"

namespace nsa::store {
namespace {

TEST_F(StoreTest, ARunKnowsItsOriginAndItsDescendants) {
  auto ledger = open();
  ASSERT_TRUE(ledger);
  Batch batch;
  batch.runs = {run_row("abcde", 1), run_row("bbbbb", 2), run_row("ccccc", 3)};
  batch.runs[1].from_run = batch.runs[2].from_run = "abcde";
  batch.runs[2].from_step = 400;
  ASSERT_TRUE(ledger->commit(batch));
  const auto stored = ledger->run("ccccc");
  EXPECT_EQ((*stored)->row.from_run, "abcde");
  EXPECT_EQ((*stored)->row.from_step, 400u);
  EXPECT_EQ((*ledger->run("abcde"))->row.from_run, "");
  const auto descendants = ledger->descendants("abcde");
  ASSERT_EQ(descendants->size(), 2u);
  EXPECT_EQ(descendants->at(0).id, "bbbbb");
  EXPECT_EQ(descendants->at(1).name, "name-ccccc");
  EXPECT_EQ(descendants->at(1).from_step, 400u);
  EXPECT_TRUE(ledger->descendants("bbbbb")->empty());
  EXPECT_TRUE(ledger->descendants("")->empty()) << "runs without an origin have none in common";
  Batch removal;
  removal.removed = {"abcde"};
  ASSERT_TRUE(ledger->commit(removal));
  EXPECT_EQ((*ledger->run("ccccc"))->row.from_run, "abcde") << "where weights came from stays true";
}

} // namespace
} // namespace nsa::store
