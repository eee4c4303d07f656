// Rows of runs as text. Reading returns what was written, and invalid rows are refused.
#include "common/wire/run_row.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::wire {
namespace {

RunSummary a_run() {
  RunSummary run;
  run.id = "abcde";
  run.name = "a \"quoted\" name, \xc3\xa9\t";
  run.state = wire::RunState::kRunning;
  run.attempt = 2;
  run.restarts = 1;
  run.step = 12;
  run.steps = uint64_t(1) << 63;
  run.has_loss = true;
  run.loss = 2.5;
  run.heldout_loss = 3; // a whole number in a floating-point member
  run.loss_trend = {2, 1.5, -1e-9};
  run.submitted_at = 1'769'868'000'000'000'123;
  run.waits_until = -1;
  run.tags = {"a", "b,c"};
  run.exposed_communication_ratio = 0.25;
  return run;
}
std::string answer_of(const std::string& rows) {
  return R"({"columns":["id",["x",{}]],"items":[)" + rows + R"(],"more":{"items":[[1]]}})";
}

TEST(RunRows, AreReadAsTheyWereWritten) {
  const RunSummary run = a_run();
  const std::string row = to_row(run).dump();
  const auto runs = read_rows(answer_of(row + "," + to_row({}).dump() + "," + row));
  ASSERT_TRUE(runs) << runs.error().what;
  ASSERT_EQ(runs->size(), 3u);
  EXPECT_EQ(nlohmann::json(runs->at(0)), nlohmann::json(run));
  EXPECT_EQ(nlohmann::json(runs->at(1)), nlohmann::json(RunSummary{}));
  EXPECT_EQ(nlohmann::json(runs->at(2)), nlohmann::json(run));
  EXPECT_TRUE(read_rows(answer_of(""))->empty());
}

TEST(RunRows, TimesOfOlderLedgersAreIntegers) {
  nlohmann::json row = to_row(a_run());
  const auto& names = run_columns();
  const auto at =
      static_cast<size_t>(std::find(names.begin(), names.end(), "submitted_at") - names.begin());
  EXPECT_EQ(row[at], "2026-01-31T14:00:00.000000123Z");
  row[at] = 1'769'868'000'000'000'123;
  const auto runs = read_rows(answer_of(row.dump()));
  ASSERT_TRUE(runs) << runs.error().what;
  EXPECT_EQ(runs->at(0).submitted_at, a_run().submitted_at);
}

TEST(Times, AreTextsOrNull) {
  EXPECT_EQ(nlohmann::json(Time(1'769'868'000'250'000'000)), "2026-01-31T14:00:00.250000000Z");
  EXPECT_EQ(nlohmann::json(Time()), nullptr);
  EXPECT_EQ(nlohmann::json("2026-01-31T14:00:00Z").get<Time>(), 1'769'868'000'000'000'000);
  EXPECT_EQ(nlohmann::json(nullptr).get<Time>(), 0);
  EXPECT_EQ(nlohmann::json(1'769'868'000'000'000'123).get<Time>(), 1'769'868'000'000'000'123)
      << "of an older ledger";
  EXPECT_EQ(parse_rfc3339("2026-01-31T14:00:00.25Z"), Time(1'769'868'000'250'000'000));
  for (const char* wrong : {"2026-01-31T14:00:00", "2026-01-31T14:00:00+01:00", "soon", ""}) {
    EXPECT_FALSE(parse_rfc3339(wrong)) << wrong;
    EXPECT_THROW(nlohmann::json(wrong).get<Time>(), nlohmann::json::exception) << wrong;
  }
  EXPECT_THROW(nlohmann::json(true).get<Time>(), nlohmann::json::exception);
}

// jq and browsers read numbers as doubles.
TEST(Times, NoNumberOfASummaryIsRounded) {
  RunSummary run = a_run();
  run.steps = 100;
  run.started_at = run.ended_at = run.submitted_at;
  const nlohmann::json json = run; // items() refers to it
  for (const auto& [key, value] : json.items())
    if (value.is_number_integer()) {
      EXPECT_LT(std::abs(value.get<int64_t>()), int64_t{1} << 53) << key;
    }
}

TEST(RunRows, OfOtherProgramsAreShorterOrLonger) {
  const auto older = read_rows(answer_of(R"(["kolder","n",null,null,3])"));
  ASSERT_TRUE(older) << older.error().what;
  EXPECT_EQ(older->at(0).name, "n");
  EXPECT_TRUE(older->at(0).state.empty());
  EXPECT_EQ(older->at(0).attempt, 3);
  nlohmann::json longer = to_row(a_run());
  for (const char* unknown :
       {"7", "[1,[2,{\"id\":[3]}],\"x\"]", "{\"id\":{\"name\":[[]]}}", "\"y\""})
    longer.push_back(nlohmann::json::parse(unknown));
  const std::string text = longer.dump();
  const auto runs = read_rows(answer_of(text + "," + text));
  ASSERT_TRUE(runs) << runs.error().what;
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ(nlohmann::json(runs->at(1)), nlohmann::json(a_run()));
}

TEST(RunRows, OfTheWrongShapeAreRefusedWithTheirColumn) {
  const auto refused = [](const std::string& rows) {
    const auto runs = read_rows(answer_of(rows));
    return runs ? "read" : runs.error().what;
  };
  EXPECT_THAT(refused("[7]"), testing::HasSubstr("column id "));
  EXPECT_THAT(refused("[\"a\",\"b\",true]"), testing::HasSubstr("column state "));
  EXPECT_THAT(refused("[\"a\",\"b\",\"c\",\"d\",1.5]"), testing::HasSubstr("column attempt "));
  EXPECT_THAT(refused("[\"a\",[]]"), testing::HasSubstr("column name "));
  EXPECT_THAT(refused("[\"a\",{}]"), testing::HasSubstr("column name "));
  nlohmann::json row = to_row({});
  const auto at = [](const char* name) {
    const auto& columns = run_columns();
    return size_t(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  for (const char* wrong : {"[\"x\"]", "[null]", "[[1]]", "[{}]", "1"}) {
    row[at("loss_trend")] = nlohmann::json::parse(wrong);
    EXPECT_THAT(refused(row.dump()), testing::HasSubstr("column loss_trend ")) << wrong;
  }
  row = to_row({});
  row[at("has_loss")] = 1;
  EXPECT_THAT(refused(row.dump()), testing::HasSubstr("column has_loss "));
  EXPECT_THAT(refused("{\"id\":\"a\"}"), testing::HasSubstr("no row"));
  EXPECT_THAT(refused("7"), testing::HasSubstr("no row"));
  EXPECT_THAT(read_rows("{\"items\":7}").error().what, testing::HasSubstr("no items"));
  EXPECT_THAT(read_rows("[[\"a\"]]").error().what, testing::HasSubstr("no items"));
  const std::string whole = answer_of(to_row(a_run()).dump());
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(read_rows(std::string_view(whole).substr(0, length))) << length;
}

} // namespace
} // namespace nsa::wire
