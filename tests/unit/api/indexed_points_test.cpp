// Points from a file with an index (common/curves). Their peaks are the same as without an index,
// even if file and index were damaged.
#include "common/base/file.h"
#include "daemon/api/metric_points.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>

namespace nsa::api {
namespace {

namespace fs = std::filesystem;

class IndexedPointsTest : public ::testing::Test {
protected:
  // Appends records as a rank does, with their index.
  void train(int attempt, int first, int last) {
    std::ofstream out(path_, std::ios::app), index(index_, std::ios::app);
    run_.erase(run_.lower_bound(first), run_.end()); // these steps are trained again
    for (int step = first; step <= last; ++step) {
      const nlohmann::json record = {{"kind", "step"},     {"attempt", attempt},
                                     {"step", step},       {"tokens", step * 512},
                                     {"time", "t"},        {"loss", loss(attempt, step)},
                                     {"norm", 1.0 / step}, {"rest", std::string(400, 'x')}};
      const std::string line = record.dump() + "\n";
      if (segment_.is_full() || !segment_.add(record, int64_t(line.size()))) {
        index << end_segment();
        EXPECT_TRUE(segment_.add(record, int64_t(line.size())));
      }
      text_ += line;
      out << line;
      run_[step] = loss(attempt, step);
      ++records_;
    }
    index << end_segment(); // as at the end of an attempt
  }
  static double loss(int attempt, int step) {
    return step % 1000 == 123 ? 1000.0 * attempt + step % 997 : 5 + 0.001 * (step % 37);
  }

  struct Answer {
    std::map<int, double> losses; // one for each step
    nlohmann::json end;
  };
  Answer ask(off_t indexed_from,
             const MetricQuery& query = {.metrics = {"loss"}, .points = 100'000},
             std::shared_ptr<CurveIndexes> indexes = nullptr) {
    return ask(std::make_shared<MetricCache>(indexed_from, std::move(indexes)), query);
  }
  Answer ask(const std::shared_ptr<MetricCache>& cache, const MetricQuery& query) {
    MetricRecords records(path_, {}, query, cache);
    std::string lines;
    for (bool at_end = false; !at_end;) {
      auto piece = records.next();
      EXPECT_TRUE(piece);
      if (!piece) return {};
      lines += piece->lines;
      at_end = piece->at_end;
    }
    Answer answer;
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json["kind"] == "end")
        answer.end = json;
      else if (!json["loss"].is_null())
        answer.losses[json["step"]] = json["loss"];
    }
    return answer;
  }
  // Every returned value belongs to the final curve, and all peaks are returned. A segment has at
  // most one peak.
  void expect_peaks() {
    const Answer told = ask(0);
    EXPECT_EQ(told.end["records"], records_);
    for (const auto& [step, loss] : told.losses) {
      ASSERT_TRUE(run_.contains(step)) << step;
      EXPECT_EQ(loss, run_.at(step)) << step;
    }
    for (const auto& [step, loss] : run_)
      EXPECT_TRUE(loss < 1000 || told.losses.contains(step)) << step;
    used_ = told.losses.size() * 2 < run_.size();
  }

  test::TemporaryFolder folder_;
  const std::string path_ = (folder_.path() / "metrics.jsonl").string();
  const fs::path index_ = folder_.path() / curves::kIndexName;
  std::string text_; // of the current segment
  curves::SegmentBuilder segment_;
  std::map<int, double> run_; // the losses of the final curve, for each step
  int records_ = 0;
  bool used_ = false; // whether the index made the answer shorter

private:
  std::string end_segment() {
    const auto checked = size_t(std::min(segment_.end() - segment_.begin(), curves::kCheckedBytes));
    std::string lines =
        segment_.lines(curves::check_of(std::string_view(text_).substr(text_.size() - checked)));
    segment_ = curves::SegmentBuilder(segment_.end());
    text_.clear();
    return lines;
  }
};

TEST_F(IndexedPointsTest, PeaksStay) {
  train(1, 1, 20'000);
  expect_peaks();
  EXPECT_TRUE(used_);
}

TEST_F(IndexedPointsTest, StepsThatWereDoneAgainCountOnce) {
  train(1, 1, 12'000);
  train(2, 7'001, 9'000); // resumed within a segment, and ended early
  train(3, 8'501, 20'000);
  expect_peaks();
  EXPECT_TRUE(used_);
  train(4, 100, 200); // the last attempt of the run: later steps no longer count
  expect_peaks();
}

TEST_F(IndexedPointsTest, WhatTheIndexDoesNotCoverIsRead) {
  train(1, 1, 10'000);
  const std::string covered = *read_file(index_);
  train(1, 10'001, 13'000);
  for (const std::string& left : {std::string(), covered, covered.substr(0, covered.size() - 2)}) {
    ASSERT_TRUE(write_file_atomic(index_, left));
    expect_peaks();
    EXPECT_EQ(used_, left.size() > 1000);
  }
}

TEST_F(IndexedPointsTest, ACutFileHasWhatIsLeftOfIt) {
  train(1, 1, 10'000);
  const std::string text = *read_file(path_);
  const std::string left = text.substr(0, text.rfind('\n', text.size() / 3) + 1);
  ASSERT_TRUE(write_file_atomic(path_, left));
  records_ = int(std::count(left.begin(), left.end(), '\n'));
  run_.erase(run_.upper_bound(records_), run_.end());
  expect_peaks();
  EXPECT_TRUE(used_);
}

TEST_F(IndexedPointsTest, AnotherFileIsReadWithoutIt) {
  train(1, 1, 10'000);
  std::string other = *read_file(path_);
  for (char& c : other)
    if (c == 'x') c = 'y'; // the size stays the same
  ASSERT_TRUE(write_file_atomic(path_, other));
  expect_peaks();
  EXPECT_FALSE(used_);
}

TEST_F(IndexedPointsTest, AnIndexWithAnythingInItHarmsNobody) {
  train(1, 1, 3'000);
  for (const std::string& text :
       {std::string("\0\xff\n{}\n", 6),
        std::string("{\"begin\":0,\"end\":9223372036854775807,\"check\":1,\"unreadable\":0,"
                    "\"kinds\":{}}\n"),
        std::string(1 << 20, '['), std::string("{\"kind\":\"step\",\"metric\":\"loss\",\n")}) {
    ASSERT_TRUE(write_file_atomic(index_, text));
    expect_peaks();
    EXPECT_FALSE(used_);
  }
}

TEST_F(IndexedPointsTest, AZoomShowsEachStep) {
  train(1, 1, 12'000);
  train(2, 7'001, 20'000);
  for (const auto& [first, last] : {std::pair(6'900, 7'100), {1, 50}, {19'990, 30'000}}) {
    const MetricQuery query{
        .metrics = {"loss"}, .points = 1000, .first_step = first, .last_step = last};
    const Answer answer = ask(0, query);
    ASSERT_EQ(answer.losses.size(), size_t(std::min(last, 20'000) - first + 1));
    for (const auto& [step, value] : answer.losses)
      EXPECT_EQ(value, loss(step > 7'000 ? 2 : 1, step));
  }
}

// If the ranks of a run wrote no index, nsad makes one once. The next nsad still has it.
TEST_F(IndexedPointsTest, NsadMakesTheIndexThatIsMissing) {
  train(1, 1, 12'000);
  train(2, 7'001, 20'000);
  fs::remove(index_);
  const fs::path kept = folder_.path() / "curves";
  const fs::path own = kept / (folder_.path().filename().string() + ".jsonl");
  const auto all = ask(1).losses; // all records
  {
    const auto indexes = std::make_shared<CurveIndexes>(kept);
    EXPECT_EQ(ask(1, {.metrics = {"loss"}, .points = 100'000}, indexes).losses.size(), all.size());
    indexes->wait();
  }
  EXPECT_FALSE(fs::exists(index_)) << "the run's folder is not nsad's";
  ASSERT_TRUE(fs::exists(own));
  const auto made = fs::last_write_time(own);
  const auto indexes = std::make_shared<CurveIndexes>(kept);
  const auto answer = ask(1, {.metrics = {"loss"}, .points = 100'000}, indexes);
  indexes->wait();
  EXPECT_EQ(fs::last_write_time(own), made) << "it was made again";
  EXPECT_LT(answer.losses.size() * 2, run_.size());
  EXPECT_EQ(answer.end["records"], records_);
  for (const auto& [step, loss] : run_)
    EXPECT_TRUE(loss < 1000 || answer.losses.contains(step)) << step;
  for (const auto& [step, loss] : answer.losses)
    EXPECT_EQ(loss, run_.at(step)) << step;
}

TEST_F(IndexedPointsTest, AnIndexOfARunThatIsGoneIsTakenAway) {
  train(1, 1, 2'000);
  fs::remove(index_);
  const fs::path kept = folder_.path() / "curves";
  fs::create_directories(kept);
  std::ofstream(kept / "kgone.jsonl") << "{}\n";
  const auto indexes = std::make_shared<CurveIndexes>(kept);
  (void)ask(1, {.metrics = {"loss"}, .points = 100'000}, indexes);
  indexes->wait();
  EXPECT_FALSE(fs::exists(kept / "kgone.jsonl"));
}

// A request that allows coarse points gets some at once, from the first step to the last. It gets
// exact points as soon as the index exists.
TEST_F(IndexedPointsTest, CoarsePointsComeUntilTheIndexIsThere) {
  train(1, 1, 12'000);
  train(2, 7'001, 20'000);
  fs::remove(index_);
  // An earlier entry of the queue cannot be read, so this run's index waits behind it.
  const fs::path first = folder_.path() / "first";
  ASSERT_EQ(::mkfifo(first.c_str(), 0600), 0);
  const auto indexes = std::make_shared<CurveIndexes>(folder_.path() / "curves");
  indexes->want(first / "metrics.jsonl", [&](const std::string&) -> Result<UniqueFd> {
    UniqueFd waits(::open(first.c_str(), O_RDONLY)); // blocks until the test opens the other end
    return fail(ErrorCode::kNotFound, "it has no records", "");
  });
  const MetricQuery query{.metrics = {"loss"}, .points = 100'000, .coarse = true};
  const auto cache = std::make_shared<MetricCache>(1, indexes);
  for (int turn = 0; turn < 2; ++turn) {
    const Answer coarse = ask(cache, query);
    EXPECT_TRUE(coarse.end.value("coarse", false));
    EXPECT_EQ(coarse.end.value("indexed", -1.0), 0);
    EXPECT_GE(coarse.losses.size(), 1000u);
    EXPECT_LT(coarse.losses.size(), 5000u);
    EXPECT_EQ(coarse.losses.begin()->first, 1);
    EXPECT_EQ(coarse.losses.rbegin()->first, 20'000);
    for (const auto& [step, loss] : coarse.losses)
      EXPECT_TRUE(loss == run_.at(step) || (step > 7'000 && step < 12'000)) << step;
  }
  MetricQuery zoom = query;
  zoom.first_step = 15'000, zoom.last_step = 15'400;
  EXPECT_EQ(ask(cache, zoom).losses.size(), 401u) << "a short part is read whole";
  MetricQuery exact = query;
  exact.coarse = false;
  const Answer all = ask(cache, exact); // requests that do not allow coarse points get exact ones
  EXPECT_FALSE(all.end.contains("coarse"));
  EXPECT_EQ(all.end["records"], records_);
  {
    const UniqueFd goes_on(::open(first.c_str(), O_WRONLY));
  }
  indexes->wait();
  const Answer fine = ask(cache, query);
  EXPECT_FALSE(fine.end.contains("coarse"));
  EXPECT_EQ(fine.end["records"], records_);
  for (const auto& [step, loss] : run_)
    EXPECT_TRUE(loss < 1000 || fine.losses.contains(step)) << step;
}

// The file has a line of several MiB that no rank writes. nsad makes no index, and reads the
// records without one.
TEST_F(IndexedPointsTest, RecordsThatHaveNoIndexAreReadAsBefore) {
  train(1, 1, 200);
  fs::remove(index_);
  std::ofstream(path_, std::ios::app) << std::string(6 << 20, 'x') << "\n";
  const fs::path kept = folder_.path() / "curves";
  const auto indexes = std::make_shared<CurveIndexes>(kept);
  EXPECT_EQ(ask(1, {.metrics = {"loss"}, .points = 100'000}, indexes).losses.size(), 200u);
  indexes->wait();
  EXPECT_TRUE(!fs::exists(kept) || fs::is_empty(kept));
  const auto coarse = ask(1, {.metrics = {"loss"}, .points = 100'000, .coarse = true}, indexes);
  EXPECT_FALSE(coarse.end.contains("coarse")) << "no index is coming";
  EXPECT_EQ(coarse.losses.size(), 200u);
}

} // namespace
} // namespace nsa::api
