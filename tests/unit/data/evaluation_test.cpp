#include "worker/data/evaluation.h"

#include "tests/unit/dataset/prepare_support.h"

#include <map>
#include <set>

namespace nsa::data {
namespace {

class EvaluationTest : public ::testing::Test {
protected:
  void SetUp() override {
    auto options =
        dataset::byte_options(folder_, {folder_.write("t.txt", dataset::some_text(200))});
    ASSERT_TRUE(dataset::prepare(options));
    data_ = dataset::Dataset::open(options.output, dataset::Check::kSizes).value();
  }

  // Returns the tokens of all ranks' sequences, by sequence number.
  std::map<int64_t, std::vector<int64_t>> rows(int64_t world, int64_t micro_batch, int64_t most) {
    std::map<int64_t, std::vector<int64_t>> found;
    std::set<int64_t> batches;
    for (int64_t rank = 0; rank < world; ++rank) {
      const auto set =
          EvaluationSet::open({{data_}}, {16, micro_batch, 1, rank, world}, most).value();
      batches.insert(set.batches());
      for (int64_t b = 0; b < set.batches(); ++b) {
        const Batch batch = set.batch(b);
        EXPECT_LE(batch.rows, micro_batch);
        EXPECT_EQ(batch.inputs.size(), static_cast<size_t>(batch.rows * 16));
        for (int64_t row = 0; row < batch.rows; ++row) {
          const auto in = batch.inputs.subspan(static_cast<size_t>(row * 16), 16);
          const int64_t sequence = batch.rows_from[static_cast<size_t>(row)].sequence;
          EXPECT_FALSE(found.contains(sequence));
          found[sequence] = {in.begin(), in.end()};
        }
      }
    }
    EXPECT_EQ(batches.size(), 1u) << "ranks have different numbers of batches";
    return found;
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<const dataset::Dataset> data_;
};

TEST_F(EvaluationTest, TheSameTextOnAnyNumberOfRanks) {
  const auto reference = rows(1, 1, 23);
  EXPECT_EQ(reference.size(), 23u);
  for (const int64_t world : {1, 2, 3, 4})
    for (const int64_t micro_batch : {1, 2, 5})
      EXPECT_EQ(rows(world, micro_batch, 23), reference) << world << " x " << micro_batch;
}

TEST_F(EvaluationTest, SequencesAreSpreadOverTheWholeSplit) {
  const int64_t samples = sample_count(data_->tokens(dataset::Split::kHeldout).size(), 16);
  ASSERT_GT(samples, 60);
  EXPECT_EQ(rows(2, 3, 0).size(), static_cast<size_t>(samples));
  EXPECT_EQ(rows(1, 4, samples + 100).size(), static_cast<size_t>(samples));
  const auto set = EvaluationSet::open({{data_}}, {16, 4, 1, 0, 1}, 4).value();
  const Batch batch = set.batch(0);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(batch.rows_from[static_cast<size_t>(i)].sample, i * samples / 4);
}

TEST_F(EvaluationTest, WithoutHeldOutTextThereIsNothingToEvaluate) {
  auto options = dataset::byte_options(folder_, {folder_.path() / "t.txt"});
  options.heldout_fraction = 0;
  options.output = folder_.path() / "none";
  ASSERT_TRUE(dataset::prepare(options));
  const auto data = dataset::Dataset::open(options.output, dataset::Check::kSizes).value();
  const auto set = EvaluationSet::open({{data}}, {16, 1, 1, 0, 1}, 0);
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(EvaluationSet::open({{data_}}, {16, 1, 1, 0, 1}, -1));
  EXPECT_FALSE(EvaluationSet::open({{data_}}, {1 << 20, 1, 1, 0, 1}, 0));
}

} // namespace
} // namespace nsa::data
