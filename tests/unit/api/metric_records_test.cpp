// Reads metrics.jsonl, a file that a rank owns: records, peaks, and nothing beyond the limits.
#include "daemon/api/metric_line.h"
#include "daemon/api/metric_points.h"
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

Read read(const std::string& path, MetricQuery query,
          const std::shared_ptr<MetricCache>& cache = nullptr) {
  MetricRecords records(path, {}, std::move(query), cache);
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
  for (int i = 20'001; i <= 200'000; ++i) // resumed from step 20,000
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

TEST(MetricRecords, PointsComeFromAllPartsOfALongRun) {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "metrics.jsonl").string();
  std::ofstream out(path);
  for (int i = 1; i <= 100'000; ++i)
    out << step(i, 3 + 0.1 * std::sin(i));
  out.close();
  const Read got = read(path, {.metrics = {"loss"}, .points = 400});
  std::vector<int> quarters(4);
  for (const auto& record : got.records)
    ++quarters[static_cast<size_t>((record["step"].get<int>() - 1) / 25'000)];
  for (const int count : quarters)
    EXPECT_NEAR(count, 100, 4);
}

TEST(MetricRecords, AZoomIsAsIfTheFileHadTheseStepsAlone) {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "metrics.jsonl").string();
  std::ofstream out(path);
  for (int i = 1; i <= 20'000; ++i)
    out << step(i, i);
  for (int i = 15'001; i <= 16'000; ++i) // resumed, and ended early
    out << step(i, -i, 2);
  for (int i = 15'501; i <= 40'000; ++i)
    out << step(i, i, 3);
  out.close();
  const auto cache = std::make_shared<MetricCache>();
  for (const auto& [first, last] : {std::pair(15'400, 15'600), {1, 100}, {39'990, 50'000}}) {
    const MetricQuery query{
        .metrics = {"loss"}, .points = 1000, .first_step = first, .last_step = last};
    const Read got = read(path, query, cache);
    ASSERT_EQ(got.records.size(), static_cast<size_t>(std::min(last, 40'000) - first + 1));
    for (size_t i = 0; i < got.records.size(); ++i) {
      const int at = first + static_cast<int>(i);
      EXPECT_EQ(got.records[i]["step"], at);
      EXPECT_EQ(got.records[i]["attempt"], at <= 15'000 ? 1 : at <= 15'500 ? 2 : 3);
    }
  }
  // The second attempt is the run's last. Later steps of the first attempt no longer count.
  std::ofstream shorter(path + "2");
  for (int i = 1; i <= 20'000; ++i)
    shorter << step(i, i);
  for (int i = 101; i <= 200; ++i)
    shorter << step(i, -i, 2);
  shorter.close();
  const Read gone =
      read(path + "2",
           {.metrics = {"loss"}, .points = 1000, .first_step = 9'000, .last_step = 9'100}, cache);
  EXPECT_TRUE(gone.records.empty());
}

TEST(MetricRecords, WhatIsAppendedIsToldByTheNextQuestion) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl", step(1, 1) + step(2, 2) + "{\"kind\":");
  const auto cache = std::make_shared<MetricCache>();
  const MetricQuery query{.metrics = {"loss"}, .points = 100};
  EXPECT_EQ(read(path, query, cache).records.size(), 2u);
  std::ofstream(path, std::ios::app) << "\"step\",\"step\":3}\n" << step(4, 4);
  const Read more = read(path, query, cache);
  ASSERT_EQ(more.records.size(), 4u);
  EXPECT_EQ(more.records[3]["loss"], 4);
  EXPECT_EQ(more.end["records"], 4);
  // Steps are trained again, and then the path has another file.
  std::ofstream(path, std::ios::app) << step(2, 9, 2);
  EXPECT_EQ(read(path, query, cache).records.size(), 2u);
  std::filesystem::remove(path);
  EXPECT_TRUE(read(path, query, cache).records.empty());
  folder.write("new", step(7, 7));
  std::filesystem::rename(folder.path() / "new", path);
  const Read other = read(path, query, cache);
  ASSERT_EQ(other.records.size(), 1u);
  EXPECT_EQ(other.records[0]["step"], 7);
}

// The fast scanner and the JSON parser agree, also on damaged lines.
TEST(MetricLine, TakesWhatTheParserTakes) {
  const std::vector<std::string> names = {"step", "gates.0/selected", "phase_seconds.forward"};
  const std::string whole = step(12, 2.5);
  std::vector<std::string> lines = {
      whole.substr(0, whole.size() - 1),
      R"({"kind":"step","step":-1.5e-3,"x":[1,{"step":9},[]],"y":{"step":8},"z":"\u00e4\"\n"})",
      R"( { "kind" : null , "step" : 0 } )",
      R"({"kind":"s","step":"3","step":4})",
      "{}",
      R"({"step":01})",
      R"({"step":+1})",
      R"({"step":1.})",
      R"({"step":1e})",
      R"({"step":.5})",
      R"({"a":"\x"})",
      R"({"a":"\u12g4"})",
      R"({"a":"\ud83d"})",
      R"({"a":"\ude00"})",
      R"({"a":"\ud83d\u0041"})",
      R"({"a":tru})",
      R"({"a":1,})",
      R"([1])",
      R"({"a":1}})",
      "{\"a\":\"\t\"}",
  };
  for (size_t cut = 0; cut < whole.size(); cut += 3)
    lines.push_back(whole.substr(0, cut));
  for (size_t at = 0; at + 1 < whole.size(); at += 2) {
    lines.push_back(whole.substr(0, whole.size() - 1));
    lines.back()[at] = ',';
  }
  MetricLine line;
  for (const std::string& text : lines) {
    const auto json = parse_json(text, "line");
    const bool is_object = json && json->is_object();
    ASSERT_EQ(read_metric_line(text, names, line), is_object) << text;
    if (!is_object) continue;
    EXPECT_EQ(line.has_kind, json->contains("kind")) << text;
    EXPECT_EQ(line.kind, json->contains("kind") && (*json)["kind"].is_string()
                             ? (*json)["kind"].get<std::string>()
                             : "")
        << text;
    const bool has_step = json->contains("step") && (*json)["step"].is_number();
    EXPECT_EQ(!std::isnan(line.values[0]), has_step) << text;
    if (has_step) {
      EXPECT_EQ(line.values[0], (*json)["step"].get<double>()) << text;
    }
  }
  ASSERT_TRUE(read_metric_line(lines[0], names, line));
  EXPECT_EQ(line.values, (std::vector<double>{12, 0.5, 0.25}));
  EXPECT_EQ(line.time, "2026-11-23T09:00:00Z");
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
