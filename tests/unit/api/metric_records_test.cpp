// What is read of metrics.jsonl, which a rank owns: records, peaks, and no more than its limits.
#include "daemon/api/metric_records.h"
#include "tests/support/temporary_folder.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/stat.h>

namespace nsa::api {
namespace {

std::string step(int step, double loss, int attempt = 1) {
  return nlohmann::json{{"kind", "step"},
                        {"attempt", attempt},
                        {"step", step},
                        {"tokens", step * 10},
                        {"time", "2026-11-23T09:00:00Z"},
                        {"loss", loss},
                        {"phase_seconds", {{"forward", 0.25}}},
                        {"gates", {{"0/selected", 0.5}}}}
             .dump() +
         "\n";
}

struct Read {
  std::vector<nlohmann::json> records;
  nlohmann::json end;
};

Read read(const std::string& path, MetricQuery query) {
  MetricRecords records(path, {}, std::move(query));
  std::string lines;
  while (true) {
    const auto piece = records.next();
    EXPECT_TRUE(piece) << piece.error().what;
    if (!piece) return {};
    lines += piece->lines;
    if (piece->at_end) break;
  }
  Read read;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);)
    read.records.push_back(nlohmann::json::parse(line));
  read.end = read.records.back();
  read.records.pop_back();
  return read;
}

TEST(MetricRecords, AreWholeOrTheMembersThatAreNamed) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl", step(1, 2.5) + step(2, 2.25));
  const Read whole = read(path, {});
  ASSERT_EQ(whole.records.size(), 2u);
  EXPECT_EQ(whole.records[0]["phase_seconds"]["forward"], 0.25);
  const Read part =
      read(path, {.metrics = {"loss", "phase_seconds.forward", "gates.0/selected", "nothing"}});
  EXPECT_EQ(part.records[1], (nlohmann::json{{"kind", "step"},
                                             {"attempt", 1},
                                             {"step", 2},
                                             {"tokens", 20},
                                             {"time", "2026-11-23T09:00:00Z"},
                                             {"loss", 2.25},
                                             {"phase_seconds.forward", 0.25},
                                             {"gates.0/selected", 0.5},
                                             {"nothing", nullptr}}));
  EXPECT_EQ(part.end, (nlohmann::json{{"kind", "end"}, {"records", 2}, {"unreadable", 0}}));
}

TEST(MetricRecords, AFileThatIsNotThereHasNone) {
  const test::TemporaryFolder folder;
  const Read none = read((folder.path() / "metrics.jsonl").string(), {});
  EXPECT_TRUE(none.records.empty());
  EXPECT_EQ(none.end["records"], 0);
}

TEST(MetricRecords, WhatIsNoRecordIsCountedAndCostsNoOther) {
  const test::TemporaryFolder folder;
  const std::string deep = std::string(20'000, '[') + std::string(20'000, ']');
  const std::string path = folder.write(
      "metrics.jsonl", step(1, 1) + "{\"kind\": \"ste\n" + deep +
                           "\n\n17\n{\"kind\":\"step\",\"step\":1e400}\n" +
                           std::string(3'000'000, 'x') + "\n" + step(2, 2) + "{\"kind\":\"step\"");
  const Read got = read(path, {.metrics = {"loss"}});
  ASSERT_EQ(got.records.size(), 2u);
  EXPECT_EQ(got.records[1]["loss"], 2);
  EXPECT_EQ(got.end["unreadable"], 6); // the last line is still being written
}

TEST(MetricRecords, AFifoIsRefused) {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "metrics.jsonl").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto piece = MetricRecords(path, {}, {}).next();
  ASSERT_FALSE(piece);
  EXPECT_THAT(piece.error().what, testing::HasSubstr("is a FIFO"));
}

TEST(MetricRecords, PointsKeepPeaksAndTheLastAttempt) {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "metrics.jsonl").string();
  std::ofstream out(path);
  for (int i = 1; i <= 30'000; ++i)
    out << step(i, i == 12'345 ? 99 : 3 + 0.1 * std::sin(i));
  for (int i = 20'001; i <= 200'000; ++i) // resumed
    out << step(i, i == 150'000 ? -7 : 2, 2);
  out.close();
  const Read got = read(path, {.metrics = {"loss"}, .points = 200});
  EXPECT_LE(got.records.size(), 202u);
  EXPECT_GE(got.records.size(), 100u);
  EXPECT_EQ(got.end["records"], 210'000);
  double previous = 0, least = 0, greatest = 0;
  for (const auto& record : got.records) {
    EXPECT_GT(record["step"], previous);
    previous = record["step"];
    EXPECT_EQ(record["attempt"], previous > 20'000 ? 2 : 1);
    least = std::min(least, record["loss"].get<double>());
    greatest = std::max(greatest, record["loss"].get<double>());
  }
  EXPECT_EQ(least, -7);
  EXPECT_EQ(greatest, 99);
  EXPECT_EQ(got.records.front()["step"], 1);
  EXPECT_EQ(got.records.back()["step"], 200'000);
}

TEST(KeepPeaks, ValuesThatAreMissingAreNoPeaks) {
  std::vector<MetricRow> rows(100);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = {1, static_cast<double>(i), 0, "", {i == 40 ? 5.0 : std::nan("")}};
  const auto kept = keep_peaks(rows, 10);
  ASSERT_EQ(kept.size(), 3u); // the first, the value, the last
  EXPECT_EQ(kept[1].step, 40);
}

} // namespace
} // namespace nsa::api
