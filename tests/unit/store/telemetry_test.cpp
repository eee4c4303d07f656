#include "daemon/store/sqlite.h"
#include "daemon/store/telemetry.h"
#include "tests/unit/store/store_fixture.h"

namespace nsa::store {
namespace {

TEST_F(StoreTest, TelemetryIsWrittenBehindAndReadBack) {
  wire::RankStep s;
  {
    auto telemetry = Telemetry::open(folder_);
    ASSERT_TRUE(telemetry) << telemetry.error().what;
    for (s.step = 1; s.step <= 100; ++s.step) {
      s.loss = 1.0 / static_cast<double>(s.step);
      telemetry->add("abcde", 1, s);
    }
    s.step = 100;
    s.loss = 7;
    telemetry->add("abcde", 2, s);
    s.rank = 1;
    s.loss = 8;
    telemetry->add("abcde", 3, s);
    wire::RankEvaluation evaluation;
    evaluation.step = 50;
    evaluation.loss = 2.5;
    telemetry->add("abcde", 2, evaluation);
  } // the destructor writes the queue
  auto telemetry = Telemetry::open(folder_);
  ASSERT_TRUE(telemetry) << telemetry.error().what;
  const auto points = telemetry->losses("abcde", 10);
  ASSERT_TRUE(points) << points.error().what;
  ASSERT_EQ(points->size(), 10u);
  EXPECT_EQ(points->front().step, 91u);
  EXPECT_EQ(points->back().loss, 7) << "the newest attempt's value of rank 0 counts";
  const auto heldout = telemetry->heldout_losses("abcde", 10);
  ASSERT_TRUE(heldout) << heldout.error().what;
  ASSERT_EQ(heldout->size(), 1u);
  EXPECT_EQ(heldout->front().loss, 2.5);
}

TEST_F(StoreTest, TelemetryOfAnOlderNsadKeepsItsCurves) {
  {
    auto database = Database::open((folder_ / "telemetry.db").string());
    ASSERT_TRUE(
        database &&
        database->execute("CREATE TABLE steps (run TEXT, step INTEGER, attempt INTEGER, rank "
                          "INTEGER, tokens INTEGER, loss REAL);"
                          "CREATE TABLE evaluations (run TEXT, step INTEGER, attempt INTEGER, "
                          "tokens INTEGER, loss REAL, seconds REAL);"
                          "INSERT INTO steps VALUES ('abcde',3,1,0,9,1.5),('abcde',3,1,1,9,4);"
                          "INSERT INTO evaluations VALUES ('abcde',3,1,9,2.5,1);"));
  }
  for (int round = 0; round < 2; ++round) { // the second round finds the tables of the first
    auto telemetry = Telemetry::open(folder_);
    ASSERT_TRUE(telemetry) << telemetry.error().what;
    const auto points = telemetry->losses("abcde", 10);
    ASSERT_TRUE(points && points->size() == 1);
    EXPECT_EQ(points->front().loss, 1.5);
    const auto heldout = telemetry->heldout_losses("abcde", 10);
    ASSERT_TRUE(heldout && heldout->size() == 1);
    EXPECT_EQ(heldout->front().loss, 2.5);
  }
}

} // namespace
} // namespace nsa::store
