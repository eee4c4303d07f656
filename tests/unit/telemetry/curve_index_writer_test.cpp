// The index that rank 0 keeps beside its metrics.jsonl, over attempts that may end at any time.
#include "common/base/file.h"
#include "tests/support/temporary_folder.h"
#include "worker/telemetry/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

namespace nsa::train {
namespace {

namespace fs = std::filesystem;
using curves::Segment;

class CurveIndexTest : public ::testing::Test {
protected:
  // An attempt trains these steps and ends. Its losses are those of loss().
  void train(AttemptNumber attempt, uint64_t first, uint64_t last) {
    MetricsLog log(path_, attempt);
    for (uint64_t i = first; i <= last; ++i) {
      wire::RankStep step;
      step.step = i;
      step.loss = loss(i);
      log.step(step);
    }
  }
  static double loss(uint64_t step) { return step % 500 == 77 ? 100.0 + double(step) : 2.0; }

  std::vector<Segment> read() const {
    return curves::read_index(read_file(index_).value_or(""), "step", {"loss"});
  }
  // Checks a segment as nsad does before it uses one.
  bool holds(const Segment& segment) const {
    const std::string text = *read_file(path_);
    const auto end = static_cast<size_t>(segment.end), checked = size_t(segment.checked());
    return end <= text.size() &&
           curves::check_of(std::string_view(text).substr(end - checked, checked)) == segment.check;
  }
  // The thread that adds missing segments may still be working.
  std::vector<Segment> wait_for(int64_t covered) const {
    for (int i = 0; i < 4000; ++i) {
      auto segments = read();
      if (!segments.empty() && segments.back().end >= covered && holds(segments.back()))
        return segments;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "the index does not reach " << covered;
    return {};
  }
  int64_t size() const { return static_cast<int64_t>(fs::file_size(path_)); }

  test::TemporaryFolder folder_;
  const fs::path path_ = folder_.path() / "metrics.jsonl";
  const fs::path index_ = folder_.path() / curves::kIndexName;
};

TEST_F(CurveIndexTest, GrowsWithTheRecords) {
  train(1, 1, 3000);
  const auto segments = read();
  ASSERT_GE(segments.size(), 2u);
  EXPECT_LT(size() - segments.back().end, curves::kSegmentBytes);
  for (const Segment& segment : segments) {
    EXPECT_TRUE(holds(segment)) << segment.begin;
    double greatest = 0;
    for (auto step = uint64_t(segment.least); step <= uint64_t(segment.greatest); ++step)
      greatest = std::max(greatest, loss(step));
    ASSERT_TRUE(segment.metrics[0]);
    EXPECT_EQ(segment.metrics[0]->greatest.value, greatest);
  }
}

TEST_F(CurveIndexTest, ALaterAttemptGoesOnWhereTheOneBeforeEnded) {
  train(1, 1, 3000);
  const auto covered = read().back().end;
  const int64_t first_size = size();
  ASSERT_LT(covered, first_size); // no segment covers the last records
  train(2, 2001, 5000);
  const auto segments = wait_for(first_size + 1);
  int64_t at = 0;
  bool ends_with_the_attempt = false;
  for (const Segment& segment : segments) {
    EXPECT_EQ(segment.begin, at);
    EXPECT_TRUE(holds(segment)) << segment.begin;
    at = segment.end;
    ends_with_the_attempt = ends_with_the_attempt || segment.end == first_size;
  }
  EXPECT_TRUE(ends_with_the_attempt) << "steps of two attempts share a segment";
}

TEST_F(CurveIndexTest, AMissingOrTornIndexIsMadeAgain) {
  train(1, 1, 4000);
  const std::string good = *read_file(index_);
  for (const std::string& left : {std::string(), good.substr(0, good.size() / 2), "{" + good,
                                  good.substr(0, good.size() - 1)}) {
    ASSERT_TRUE(write_file_atomic(index_, left));
    const int64_t before = size();
    MetricsLog log(path_, 2);
    const auto segments = wait_for(before);
    for (const Segment& segment : segments)
      EXPECT_TRUE(holds(segment)) << segment.begin;
    log.step({});
  }
}

TEST_F(CurveIndexTest, AnIndexOfAnotherFileIsNotKept) {
  train(1, 1, 3000);
  std::string text = *read_file(path_);
  text.resize(text.size() / 2); // cut, and then continued by another program
  text.resize(text.rfind('\n') + 1);
  for (char& c : text)
    if (c == '7') c = '8';
  ASSERT_TRUE(write_file_atomic(path_, text));
  const MetricsLog log(path_, 2);
  for (const Segment& segment : wait_for(size()))
    EXPECT_TRUE(holds(segment)) << segment.begin;
}

TEST_F(CurveIndexTest, AnIndexThatCannotBeWrittenFailsNothing) {
  fs::create_directory(index_);
  train(1, 1, 3000);
  EXPECT_GT(size(), 3000);
}

} // namespace
} // namespace nsa::train
