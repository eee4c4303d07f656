#include "worker/data/sample_order.h"

#include "worker/data/batch.h"

#include <gtest/gtest.h>
#include <set>

namespace nsa::data {
namespace {

TEST(SampleOrder, CountsSamples) {
  EXPECT_EQ(sample_count(0, 8), 0);
  EXPECT_EQ(sample_count(8, 8), 0); // no token is left for the last target
  EXPECT_EQ(sample_count(9, 8), 1);
  EXPECT_EQ(sample_count(16, 8), 1);
  EXPECT_EQ(sample_count(17, 8), 2);
}

TEST(SampleOrder, AnEpochIsEverySampleOnce) {
  const SampleOrder order(101, 16, 5);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 101; ++i) {
      const SequenceAddress at = order.at(epoch * 101 + i);
      EXPECT_EQ(at.epoch, epoch);
      EXPECT_EQ(at.position, at.sample * 16);
      seen.insert(at.sample);
    }
    EXPECT_EQ(seen.size(), 101u);
  }
}

TEST(SampleOrder, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  const SampleOrder order(101, 16, 5), other_seed(101, 16, 6);
  int64_t same_epoch = 0, same_seed = 0;
  for (int64_t i = 0; i < 101; ++i) {
    same_epoch += order.at(i).sample == order.at(101 + i).sample;
    same_seed += order.at(i).sample == other_seed.at(i).sample;
  }
  EXPECT_LT(same_epoch, 10); // two random permutations have 1 in common on average
  EXPECT_LT(same_seed, 10);
}

// However a step is divided, its places are 0 .. global_batch - 1. Each place occurs once, in the
// order (micro step, rank, row).
TEST(SampleOrder, PlacesOfAStepDoNotDependOnTheDivision) {
  for (const int64_t world : {1, 2, 3, 4, 6, 12}) {
    for (const int64_t micro_batch : {1, 2, 4}) {
      if (12 % (world * micro_batch)) continue;
      int64_t expected = 0;
      for (int64_t micro_step = 0; micro_step < 12 / (world * micro_batch); ++micro_step) {
        for (int64_t rank = 0; rank < world; ++rank) {
          const BatchShape shape{16, micro_batch, 12 / (world * micro_batch), rank, world};
          ASSERT_TRUE(check(shape));
          for (int64_t row = 0; row < micro_batch; ++row)
            ASSERT_EQ(place_in_step(shape, micro_step, row), expected++);
        }
      }
      EXPECT_EQ(expected, 12);
    }
  }
}

TEST(SampleOrder, ShapesOutOfRangeAreNamed) {
  const BatchShape good{16, 2, 3, 1, 2};
  EXPECT_TRUE(check(good));
  auto refused = [&](auto change) {
    BatchShape shape = good;
    change(shape);
    const auto status = check(shape);
    return status ? std::string("accepted") : status.error().what;
  };
  EXPECT_EQ(refused([](auto& s) { s.rank = 2; }), "rank is 2, expected 0 up to world - 1");
  EXPECT_NE(refused([](auto& s) { s.micro_batch = 0; }).find("micro_batch"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.accumulate = 0; }).find("accumulate"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.sequence_length = 0; }).find("sequence_length"),
            std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.world = 0; }).find("world"), std::string::npos);
}

TEST(Batch, DocumentsStartAtSeparators) {
  EXPECT_EQ(document_starts(std::vector<int64_t>{5, 256, 7, 256, 256}, 256),
            (std::vector<int32_t>{0, 1, 3, 4}));
  EXPECT_EQ(document_starts(std::vector<int64_t>{256, 7}, 256), (std::vector<int32_t>{0}));
}

} // namespace
} // namespace nsa::data
