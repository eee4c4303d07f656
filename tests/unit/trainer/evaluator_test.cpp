// The held-out loss with one rank and with two, and the losses of which it consists. The last round
// has no sequence for some ranks.
#include "common/safetensors/safetensors.h"
#include "tests/unit/trainer/paragraphs.h"
#include "worker/trainer/evaluator.h"

#include "worker/comm/collectives.h"
#include "worker/runtime/runtime.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <thread>

namespace nsa::train {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kLength = 32;

// A loss that differs for each token, so rows cannot be confused.
at::Tensor loss_of(const at::Tensor& targets) {
  return targets.to(at::kFloat) / 256 + at::arange(kLength) / 1024;
}

class EvaluatorTest : public ::testing::Test {
protected:
  EvaluatorTest() {
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += "Paragraph " + std::to_string(i * i) + " is over the moon.\n\n";
    dataset_ = test::paragraphs(folder_, text);
  }

  double evaluate_rank(comm::Collectives& collectives, int64_t sequences) {
    const data::BatchShape shape{kLength, 2, 1, collectives.rank(), collectives.world()};
    const auto set = *data::EvaluationSet::open({{dataset_}}, shape, sequences);
    PhaseClock clock(*progress::Page::create(collectives.rank(), collectives.world()));
    const TokenLosses losses = [&](const std::shared_ptr<const data::Batch>& batch) {
      ++passes_[size_t(collectives.rank())];
      return loss_of(at::tensor(at::ArrayRef<int64_t>(batch->targets.data(), batch->targets.size()))
                         .view({batch->rows, kLength}));
    };
    const auto loss = evaluate({set, losses, runtime(), collectives, clock, kept_, parts_}, 7);
    EXPECT_TRUE(loss);
    return loss ? loss->loss : 0;
  }

  double evaluate_ranks(int world, int64_t sequences) {
    if (world == 1) return evaluate_rank(*comm::make_single_rank_collectives(), sequences);
    const test::TemporaryFolder place;
    std::vector<double> found(static_cast<size_t>(world));
    std::vector<std::thread> ranks;
    for (Rank r = 0; r < world; ++r)
      ranks.emplace_back([&, r] {
        auto collectives = comm::make_cpu_collectives(r, world, {place.path(), -1, 60s}, 60s);
        ASSERT_TRUE(collectives);
        found[size_t(r)] = evaluate_rank(**collectives, sequences);
      });
    for (auto& rank : ranks)
      rank.join();
    for (const double other : found)
      EXPECT_EQ(other, found[0]) << "the same on every rank";
    return found[0];
  }

  // Returns the rows that a rank kept, as position -> sum of losses. Each row is compared with the
  // text.
  std::map<int64_t, double> rows_of(Rank rank, int64_t rows) {
    const auto file =
        safetensors::Reader::open(kept_ / ("rank-" + std::to_string(rank) + ".safetensors"));
    EXPECT_TRUE(file);
    if (!file) return {};
    at::Tensor losses = at::empty({rows, kLength}), targets = at::empty({rows, kLength}, at::kLong),
               positions = at::empty({rows}, at::kLong);
    const auto read = [&](const char* name, safetensors::DataType type, const at::Tensor& into) {
      EXPECT_TRUE(
          file->read(name, type, into.sizes().vec(),
                     {static_cast<std::byte*>(into.mutable_data_ptr()), size_t(into.nbytes())}));
    };
    read("loss", safetensors::DataType::kF32, losses);
    read("target", safetensors::DataType::kI64, targets);
    read("position", safetensors::DataType::kI64, positions);
    EXPECT_TRUE(at::equal(losses, loss_of(targets)));
    std::map<int64_t, double> sums;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t position = positions[row].item<int64_t>();
      std::vector<int64_t> text(kLength + 1);
      dataset_->tokens(dataset::Split::kHeldout).copy(position, std::span(text));
      EXPECT_TRUE(at::equal(targets[row], at::tensor(text).narrow(0, 1, kLength)));
      sums[position] = losses[row].sum(at::kDouble).item<double>();
    }
    return sums;
  }

  static runtime::Runtime& runtime() { // the number of threads can be set once per process
    static const std::unique_ptr<runtime::Runtime> runtime =
        *runtime::make_cpu_runtime({.device = spec::Device::kCpu});
    return *runtime;
  }

  test::TemporaryFolder folder_;
  std::filesystem::path kept_ = folder_.path() / "kept";
  int64_t parts_ = 1;
  std::array<std::atomic<int>, 2> passes_{};
  std::shared_ptr<const dataset::Dataset> dataset_;
};

// Five sequences, two per micro-batch: in the second round rank 0 has one sequence and rank 1 none.
TEST_F(EvaluatorTest, EveryTokenCountsOnceWhereTheLastRoundIsNotFull) {
  const double one = evaluate_ranks(1, 5);
  const auto rows = rows_of(0, 5);
  ASSERT_EQ(rows.size(), 5u);
  double sum = 0;
  for (const auto& [position, of_row] : rows)
    sum += of_row;
  EXPECT_NEAR(one, sum / double(5 * kLength), 1e-12);

  EXPECT_NEAR(evaluate_ranks(2, 5), one, 1e-12);
  auto both = rows_of(0, 3);
  both.merge(rows_of(1, 2));
  EXPECT_EQ(both, rows);
}

TEST_F(EvaluatorTest, ARankWithoutARowKeepsAnEmptyTable) {
  const double one = evaluate_ranks(1, 2);
  EXPECT_NEAR(evaluate_ranks(2, 2), one, 1e-12);
  EXPECT_EQ(rows_of(0, 2).size(), 2u);
  EXPECT_TRUE(rows_of(1, 0).empty());
}

// With different numbers of passes, the ranks' numbers of collectives would differ. That would look
// like a skipped collective.
TEST_F(EvaluatorTest, RanksThatShareSequencesMakeEqualNumbersOfPasses) {
  const double one = evaluate_ranks(1, 5);
  kept_.clear();
  parts_ = 2;
  for (const int64_t sequences : {5, 1}) {
    passes_[0] = passes_[1] = 0;
    const double two = evaluate_ranks(2, sequences);
    EXPECT_EQ(passes_[0], sequences == 5 ? 2 : 1);
    EXPECT_EQ(passes_[1], passes_[0].load());
    if (sequences == 5) {
      EXPECT_NEAR(two, one, 1e-12) << "what is not its own does not count";
    }
  }
}

// An attempt with fewer ranks evaluates the same step again.
TEST_F(EvaluatorTest, NoRowIsLeftOfRanksThatThereAreNoMore) {
  evaluate_ranks(2, 5);
  folder_.write("kept/rank-3.safetensors.tmp", "of a rank that was killed in the middle");
  folder_.write("kept/notes", "not ours");
  evaluate_ranks(1, 5);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kept_))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"notes", "rank-0.safetensors"}));
  EXPECT_EQ(rows_of(0, 5).size(), 5u);
}

} // namespace
} // namespace nsa::train
