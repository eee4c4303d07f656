// The order of several data sets. Weights are exact, no sample repeats within an epoch of its
// source. The tokens are the same for any number of ranks and after a resume at any step.
#include "tests/unit/dataset/prepare_support.h"
#include "worker/data/evaluation.h"
#include "worker/data/loader.h"
#include "worker/data/mixture_order.h"

#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <set>

namespace nsa::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(MixtureOrder, EachPeriodHasExactlyTheWeights) {
  for (const std::vector<int64_t>& weights :
       {std::vector<int64_t>{7, 3}, {1, 1}, {1, 2, 3, 4}, {999, 1}}) {
    std::vector<MixtureOrder::Part> parts;
    for (size_t k = 0; k < weights.size(); ++k)
      parts.push_back({50 + 13 * static_cast<int64_t>(k), weights[k]});
    const MixtureOrder order(parts, 16, 5);
    ASSERT_EQ(order.period(), std::accumulate(weights.begin(), weights.end(), int64_t{0}));
    for (int64_t period = 0; period < 5; ++period) {
      std::vector<int64_t> found(weights.size());
      for (int64_t i = 0; i < order.period(); ++i) {
        const SequenceAddress at = order.at(period * order.period() + i);
        EXPECT_EQ(at.sequence, period * order.period() + i);
        EXPECT_EQ(at.position, at.sample * 16);
        ++found[static_cast<size_t>(at.source)];
      }
      EXPECT_EQ(found, weights) << "period " << period;
    }
  }
}

// Over whole periods each sample of a source comes once before any sample comes twice.
TEST(MixtureOrder, AnEpochOfASourceIsEverySampleOnce) {
  const std::vector<MixtureOrder::Part> parts = {{101, 7}, {40, 3}, {1, 1}};
  const MixtureOrder order(parts, 16, 5);
  std::map<std::pair<int64_t, int64_t>, std::multiset<int64_t>> seen; // source, epoch
  std::vector<int64_t> counts(3);
  constexpr int64_t kPeriods = 60;
  for (int64_t g = 0; g < kPeriods * order.period(); ++g) {
    const SequenceAddress at = order.at(g);
    seen[{at.source, at.epoch}].insert(at.sample);
    ++counts[static_cast<size_t>(at.source)];
  }
  EXPECT_THAT(counts, ElementsAre(7 * kPeriods, 3 * kPeriods, kPeriods));
  for (const auto& [key, samples] : seen) {
    const auto [source, epoch] = key;
    const int64_t all = parts[static_cast<size_t>(source)].samples;
    const std::set<int64_t> distinct(samples.begin(), samples.end());
    EXPECT_EQ(distinct.size(), samples.size()) << "source " << source << ", epoch " << epoch;
    EXPECT_LT(*distinct.rbegin(), all);
    const int64_t complete = counts[static_cast<size_t>(source)] / all;
    EXPECT_EQ(static_cast<int64_t>(distinct.size()),
              epoch < complete ? all : counts[static_cast<size_t>(source)] % all);
  }
}

TEST(MixtureOrder, OneSourceHasTheOrderOfADataSetAlone) {
  const MixtureOrder mixed({{101, 4}}, 16, 5);
  const SampleOrder alone(101, 16, 5);
  for (int64_t g = 0; g < 300; ++g) {
    EXPECT_EQ(mixed.at(g).sample, alone.at(g).sample);
    EXPECT_EQ(mixed.at(g).epoch, alone.at(g).epoch);
  }
}

TEST(MixtureOrder, SourcesPeriodsAndSeedsHaveOrdersOfTheirOwn) {
  const MixtureOrder order({{500, 50}, {500, 50}}, 16, 5), other({{500, 50}, {500, 50}}, 16, 6);
  int64_t same_period = 0, same_seed = 0;
  std::vector<int64_t> samples[2];
  for (int64_t g = 0; g < 500; ++g) {
    same_period += order.at(g).source == order.at(g + 100).source;
    same_seed += order.at(g).source == other.at(g).source;
    samples[order.at(g).source].push_back(order.at(g).sample);
  }
  EXPECT_NEAR(same_period, 250, 60); // half of them is expected of independent orders
  EXPECT_NEAR(same_seed, 250, 60);
  EXPECT_NE(samples[0], samples[1]);
}

constexpr int64_t kLength = 32;
constexpr int64_t kGlobalBatch = 12;

class MixtureTest : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    for (const char* name : {"a", "b", "c"}) {
      auto options = dataset::byte_options(
          *folder_, {folder_->write(std::string(name) + ".txt",
                                    dataset::some_text(name[0] == 'a' ? 80 : 40,
                                                       static_cast<unsigned>(name[0])))});
      options.output = folder_->path() / name;
      const auto result = dataset::prepare(options);
      ASSERT_TRUE(result) << result.error().what;
      sets_.push_back(dataset::Dataset::open(options.output, dataset::Check::kSizes).value());
    }
  }
  static void TearDownTestSuite() {
    sets_.clear();
    folder_.reset();
  }

  static std::vector<Source> sources() { return {{sets_[0], 3}, {sets_[1], 2}}; }

  static LoaderOptions options(int64_t rank = 0, int64_t world = 1, int64_t micro_batch = 2) {
    LoaderOptions options;
    options.sources = sources();
    options.shape = {kLength, micro_batch, kGlobalBatch / (micro_batch * world), rank, world};
    options.seed = 3;
    return options;
  }

  // Returns the tokens of all rows, combined from all ranks, and the `state` after the last step.
  static std::vector<std::vector<int64_t>> rows_of(int64_t steps, int64_t world,
                                                   std::optional<DataState>& state) {
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, std::vector<int64_t>> rows;
    const std::optional<DataState> resume = state;
    for (int64_t rank = 0; rank < world; ++rank) {
      auto loader = Loader::open(options(rank, world), resume).value();
      for (int64_t i = 0; i < steps * kGlobalBatch / (2 * world); ++i) {
        const auto batch = loader->next();
        for (int64_t row = 0; row < batch->rows; ++row) {
          const SequenceAddress from = batch->rows_from[static_cast<size_t>(row)];
          std::vector<int64_t> text(kLength);
          sets_[static_cast<size_t>(from.source)]
              ->tokens(dataset::Split::kTrain)
              .copy(from.position, std::span(text));
          const auto in = batch->inputs.subspan(static_cast<size_t>(row * kLength), kLength);
          EXPECT_TRUE(std::equal(in.begin(), in.end(), text.begin()));
          rows[{batch->step, batch->micro_step, rank, row}] = {in.begin(), in.end()};
        }
      }
      EXPECT_TRUE(rank == 0 || loader->state() == *state);
      state = loader->state();
    }
    std::vector<std::vector<int64_t>> result;
    for (auto& [place, row] : rows)
      result.push_back(std::move(row));
    return result;
  }

  static inline std::unique_ptr<test::TemporaryFolder> folder_;
  static inline std::vector<std::shared_ptr<const dataset::Dataset>> sets_;
};

// 2, 1, and again 2 ranks, past the end of every source's epoch.
TEST_F(MixtureTest, TheOrderIsTheSameWhateverRanksReadIt) {
  std::optional<DataState> one_go, pieces;
  const int64_t steps = 90;
  const auto reference = rows_of(steps, 1, one_go);
  ASSERT_GT(one_go->index, sample_count(sets_[0]->tokens(dataset::Split::kTrain).size(), kLength));
  std::vector<std::vector<int64_t>> found;
  for (const auto& [count, world] : {std::pair(31, 2), std::pair(7, 1), std::pair(52, 2)})
    for (auto& row : rows_of(count, world, pieces))
      found.push_back(std::move(row));
  EXPECT_EQ(found, reference);
  EXPECT_EQ(*pieces, *one_go);
  EXPECT_EQ(one_go->epoch, 0);
  EXPECT_EQ(one_go->index, steps * kGlobalBatch);
  EXPECT_THAT(one_go->sources, ElementsAre(dataset::MixedSource{sets_[0]->digest(), 3},
                                           dataset::MixedSource{sets_[1]->digest(), 2}));
}

TEST_F(MixtureTest, AChangedSourceIsRefused) {
  const DataState good = Loader::open(options()).value()->state();
  const auto refused = [&](std::vector<Source> sources) {
    LoaderOptions changed = options();
    changed.sources = std::move(sources);
    const auto loader = Loader::open(changed, good);
    EXPECT_FALSE(loader);
    if (loader) return std::string();
    EXPECT_EQ(loader.error().code, ErrorCode::kConflict);
    return loader.error().what;
  };
  EXPECT_TRUE(Loader::open(options(), good));
  EXPECT_THAT(refused({{sets_[0], 3}, {sets_[2], 2}}),
              HasSubstr("data set " + sets_[1]->digest() + " as source 1, " +
                        sets_[2]->folder().string() + " is " + sets_[2]->digest()));
  EXPECT_THAT(refused({{sets_[0], 3}, {sets_[1], 1}}), HasSubstr("weight 2 of"));
  EXPECT_THAT(refused({{sets_[1], 2}, {sets_[0], 3}}), HasSubstr("as source 0"));
  EXPECT_THAT(refused({{sets_[0], 3}}), HasSubstr("of 2 sources"));
  EXPECT_THAT(refused({{sets_[0], 3}, {sets_[1], 2}, {sets_[2], 1}}), HasSubstr("3 sources is"));
}

// With half the length there are twice as many sequences. The same part of the text counts as read.
TEST_F(MixtureTest, ShorterSequencesKeepTheShareThatWasRead) {
  std::optional<DataState> state;
  rows_of(10, 1, state);
  LoaderOptions shorter = options();
  shorter.shape.sequence_length = kLength / 2;
  EXPECT_FALSE(Loader::open(shorter, state));
  shorter.shortest_sequence = kLength / 2;
  EXPECT_EQ(Loader::open(shorter, state).value()->sequences_done(), 2 * 10 * kGlobalBatch);
}

TEST(Shares, AreExactAndAddUp) {
  EXPECT_THAT(shares_of(16, {7, 3}), ElementsAre(11, 5));
  EXPECT_THAT(shares_of(0, {7, 3}), ElementsAre(0, 0));
  EXPECT_THAT(shares_of(10, {1, 1, 1}), ElementsAre(4, 3, 3));
  EXPECT_THAT(shares_of(int64_t{1} << 40, {1'000'000'000'000, 1}),
              ElementsAre((int64_t{1} << 40) - 1, 1));
}

TEST_F(MixtureTest, EvaluationsReadEachSourceByItsShare) {
  std::set<int64_t> sequences;
  std::vector<int64_t> rows(2);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto set = EvaluationSet::open(sources(), {16, 2, 1, rank, 2}, 10).value();
    EXPECT_EQ(set.sequences(), 10);
    EXPECT_EQ(set.batches(), 3); // 6 of source 0 in two rounds of 4, 4 of source 1 in one
    for (int64_t b = 0; b < set.batches(); ++b) {
      const Batch batch = set.batch(b);
      for (const SequenceAddress& row : batch.rows_from) {
        EXPECT_EQ(row.source, static_cast<int64_t>(set.source_of(b)));
        EXPECT_TRUE(sequences.insert(row.sequence).second);
        ++rows[static_cast<size_t>(row.source)];
      }
    }
    EXPECT_DOUBLE_EQ(set.mixed({2, 4}), 2.8); // 3 : 2
  }
  EXPECT_THAT(rows, ElementsAre(6, 4));
  const auto few = EvaluationSet::open({{sets_[0], 1000}, {sets_[1], 1}}, {16, 2, 1, 0, 1}, 4);
  EXPECT_EQ(few->sequences(), 5) << "one of each source at least";
}

} // namespace
} // namespace nsa::data
