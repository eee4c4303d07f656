// The newest measurement between two nodes is kept.
#include "tests/unit/store/store_fixture.h"

namespace nsa::store {
namespace {

TEST_F(StoreTest, ANewerMeasurementReplacesTheOneBefore) {
  {
    auto ledger = open();
    ASSERT_TRUE(ledger) << ledger.error().what;
    Batch batch;
    batch.network_links = {{"ant", "bee", 0.002, 1e9, 5}, {"ant", "cow", 0.001, 2e9, 5}};
    ASSERT_TRUE(ledger->commit(batch));
    Batch anew;
    anew.network_links = {{"ant", "bee", 0.001, 1.5e9, 6, wire::MeasuredBy::kNccl}};
    ASSERT_TRUE(ledger->commit(anew));
  }
  auto ledger = open();
  ASSERT_TRUE(ledger) << ledger.error().what;
  const auto links = ledger->network_links();
  ASSERT_TRUE(links);
  ASSERT_EQ(links->size(), 2u);
  EXPECT_EQ(links->at(0).other, "bee");
  EXPECT_EQ(links->at(0).latency_seconds, 0.001);
  EXPECT_EQ(links->at(0).bytes_per_second, 1.5e9);
  EXPECT_EQ(links->at(0).measured_at, 6);
  EXPECT_EQ(links->at(0).by, wire::MeasuredBy::kNccl);
  EXPECT_EQ(links->at(1).by, wire::MeasuredBy::kTcp);
}

} // namespace
} // namespace nsa::store
