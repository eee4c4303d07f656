#include "worker/data/loader.h"

#include "tests/unit/dataset/prepare_support.h"

#include <atomic>
#include <gmock/gmock.h>
#include <map>
#include <thread>
#include <unistd.h>

namespace nsa::data {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int64_t kLength = 32;
constexpr int64_t kGlobalBatch = 12;

class LoaderTest : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    auto options =
        dataset::byte_options(*folder_, {folder_->write("t.txt", dataset::some_text(60))});
    options.shard_tokens = 1500; // small, so that sequences cross the borders of shards
    const auto result = dataset::prepare(options);
    ASSERT_TRUE(result) << result.error().what;
    data_ = dataset::Dataset::open(options.output, dataset::Check::kChecksums).value();
    const auto& tokens = data_->tokens(dataset::Split::kTrain);
    all_.resize(static_cast<size_t>(tokens.size()));
    tokens.copy(0, std::span(all_));
  }
  static void TearDownTestSuite() {
    data_.reset();
    folder_.reset();
  }

  static LoaderOptions options(int64_t rank = 0, int64_t world = 1, int64_t micro_batch = 2) {
    LoaderOptions options;
    options.sources = {{data_}};
    options.shape = {kLength, micro_batch, kGlobalBatch / (micro_batch * world), rank, world};
    options.seed = 3;
    return options;
  }

  struct Row {
    int64_t sequence;
    std::vector<int64_t> inputs, targets;
    bool operator==(const Row&) const = default;
  };

  // Returns all rows of `steps` steps, combined from all ranks in the order (step, micro step,
  // rank, row), and every rank's state at the end.
  static std::vector<Row> rows_of(int64_t steps, int64_t world, int64_t micro_batch,
                                  const std::optional<DataState>& resume = {},
                                  DataState* state = nullptr) {
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, Row> rows;
    for (int64_t rank = 0; rank < world; ++rank) {
      auto loader = Loader::open(options(rank, world, micro_batch), resume).value();
      for (int64_t i = 0; i < steps * kGlobalBatch / (micro_batch * world); ++i) {
        const auto batch = loader->next();
        EXPECT_EQ(batch->rows, micro_batch);
        for (int64_t row = 0; row < batch->rows; ++row) {
          const auto at = static_cast<size_t>(row * kLength);
          const auto in = batch->inputs.subspan(at, kLength),
                     out = batch->targets.subspan(at, kLength);
          rows[{batch->step, batch->micro_step, rank, row}] = {
              batch->rows_from[static_cast<size_t>(row)].sequence,
              {in.begin(), in.end()},
              {out.begin(), out.end()}};
        }
      }
      if (state) {
        EXPECT_TRUE(rank == 0 || loader->state() == *state);
        *state = loader->state();
      }
    }
    std::vector<Row> result;
    for (auto& [place, row] : rows)
      result.push_back(std::move(row));
    return result;
  }

  static inline std::unique_ptr<test::TemporaryFolder> folder_;
  static inline std::shared_ptr<const dataset::Dataset> data_;
  static inline std::vector<int64_t> all_;
};

TEST_F(LoaderTest, RowsAreTheTextAndTargetsAreOneAhead) {
  auto loader = Loader::open(options()).value();
  for (int i = 0; i < 40; ++i) {
    const auto batch = loader->next();
    for (int64_t row = 0; row < batch->rows; ++row) {
      const SequenceAddress from = batch->rows_from[static_cast<size_t>(row)];
      for (int64_t t = 0; t < kLength; ++t) {
        ASSERT_EQ(batch->inputs[static_cast<size_t>(row * kLength + t)],
                  all_[static_cast<size_t>(from.position + t)]);
        ASSERT_EQ(batch->targets[static_cast<size_t>(row * kLength + t)],
                  all_[static_cast<size_t>(from.position + t + 1)]);
      }
    }
  }
}

// The steps pass the end of an epoch, which lies in the middle of a step.
TEST_F(LoaderTest, TheOrderIsTheSameForAnyNumberOfRanks) {
  const int64_t samples = sample_count(static_cast<int64_t>(all_.size()), kLength);
  const int64_t steps = 2 * samples / kGlobalBatch + 2;
  ASSERT_NE(samples % kGlobalBatch, 0);
  DataState reference_state;
  const auto reference = rows_of(steps, 1, 12, {}, &reference_state);
  for (size_t i = 0; i < reference.size(); ++i)
    ASSERT_EQ(reference[i].sequence, static_cast<int64_t>(i));
  EXPECT_EQ(reference_state.epoch, steps * kGlobalBatch / samples);
  EXPECT_EQ(reference_state.index, steps * kGlobalBatch % samples);
  for (const int64_t world : {1, 2, 3, 4}) {
    for (const int64_t micro_batch : {1, 3}) {
      if (kGlobalBatch % (world * micro_batch)) continue;
      DataState state;
      EXPECT_EQ(rows_of(steps, world, micro_batch, {}, &state), reference) << world << " ranks";
      EXPECT_EQ(state, reference_state);
    }
  }
}

TEST_F(LoaderTest, ResumeAtAnyStepOnAnyNumberOfRanksGoesOnExactly) {
  constexpr int64_t kSteps = 30;
  const auto reference = rows_of(kSteps, 2, 1);
  for (int64_t stop = 0; stop < kSteps; stop += 3) {
    DataState state;
    rows_of(stop, 2, 1, {}, &state);
    const int64_t world = 1 + stop % 4;
    const auto rest = rows_of(kSteps - stop, world, 1, state);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), reference.begin() + stop * kGlobalBatch,
                           reference.end()))
        << "stopped after step " << stop << ", resumed on " << world << " ranks";
  }
}

TEST_F(LoaderTest, AStepThatIsOnlyBegunIsRepeated) {
  auto loader = Loader::open(options(0, 2, 2)).value(); // 3 micro-steps per step
  EXPECT_EQ(loader->state().index, 0);
  for (int i = 0; i < 3; ++i)
    loader->next();
  EXPECT_EQ(loader->state().index, kGlobalBatch);
  loader->next();
  loader->next();
  EXPECT_EQ(loader->state().index, kGlobalBatch);
}

TEST_F(LoaderTest, BatchesThatAreHeldStayAsTheyAre) {
  std::vector<std::shared_ptr<const Batch>> held;
  std::vector<std::vector<int64_t>> copies;
  {
    auto loader = Loader::open(options()).value();
    for (int i = 0; i < 20; ++i) {
      held.push_back(loader->next());
      copies.emplace_back(held.back()->inputs.begin(), held.back()->inputs.end());
      loader->next(); // released at once, so its buffer is used again
    }
  }
  for (size_t i = 0; i < held.size(); ++i)
    EXPECT_TRUE(std::equal(copies[i].begin(), copies[i].end(), held[i]->inputs.begin()));
}

TEST_F(LoaderTest, BuffersComeFromTheGivenAllocatorAndAreUsedAgain) {
  std::atomic<int> allocations = 0;
  auto given = options();
  given.allocate = [&](size_t bytes) {
    EXPECT_EQ(bytes, size_t{2 * 2 * kLength * 8});
    ++allocations;
    return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  };
  auto loader = Loader::open(given).value();
  for (int i = 0; i < 100; ++i)
    loader->next();
  EXPECT_LE(allocations, given.prefetch + 2); // those ahead, one being made, one in use
}

// Blocks the loader's thread until the test opens the gate, as if data were late.
struct Gate {
  std::atomic<bool> open = false;
  void pass(const std::function<bool()>& stopping) const {
    while (!open && !stopping())
      std::this_thread::sleep_for(1ms); // stopping() takes the lock that next() needs
  }
};

// Whether a thread of this process sleeps.
bool sleeps(pid_t thread) {
  const std::string stat = test::slurp("/proc/self/task/" + std::to_string(thread) + "/stat");
  return stat[stat.rfind(')') + 2] == 'S';
}

TEST_F(LoaderTest, WaitingForDataIsMeasured) {
  Gate gate;
  auto late = options();
  late.before_batch = [&](int64_t step, int64_t micro_step, const std::function<bool()>& stopping) {
    if (step == 0 && micro_step == 1) gate.pass(stopping);
  };
  auto loader = Loader::open(late).value();
  loader->next();
  const int64_t waits = loader->statistics().waits;
  const pid_t waiter = ::gettid();
  std::atomic<bool> asks = false;
  std::thread opener([&] {
    while (!asks || !sleeps(waiter)) // until it sleeps in next(): it sleeps nowhere else
      std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(30ms); // the wait that is measured
    gate.open = true;
  });
  const MonotonicTime before = MonotonicTime::now();
  asks = true;
  loader->next();
  const Duration outside = MonotonicTime::now() - before;
  opener.join();
  const LoaderStatistics& statistics = loader->statistics();
  EXPECT_EQ(statistics.waits, waits + 1);
  EXPECT_GE(statistics.wait_last, 30ms);
  EXPECT_LE(statistics.wait_last, outside);
  EXPECT_GE(statistics.wait_total, statistics.wait_last);
  EXPECT_EQ(statistics.batches, 2);
}

TEST_F(LoaderTest, ItStopsWhileDataAreLate) {
  Gate gate;
  auto late = options();
  late.before_batch = [&](int64_t step, int64_t, const std::function<bool()>& stopping) {
    if (step == 1) gate.pass(stopping);
  };
  auto loader = Loader::open(late).value();
  loader->next();
  loader.reset(); // must return; the test's time limit bounds it
}

TEST_F(LoaderTest, NoMoreThanAskedForIsMadeAhead) {
  std::atomic<int64_t> begun = 0;
  auto counted = options();
  counted.prefetch = 3;
  counted.before_batch = [&](int64_t, int64_t, const std::function<bool()>&) { ++begun; };
  auto loader = Loader::open(counted).value();
  for (int64_t taken = 1; taken <= 50; ++taken) {
    loader->next();
    EXPECT_LE(begun, taken + 3 + 1);
  }
}

TEST_F(LoaderTest, StatesOfAnotherRunAreRefused) {
  const DataState good = Loader::open(options()).value()->state();
  auto refused = [&](auto change) {
    DataState state = good;
    change(state);
    const auto loader = Loader::open(options(), state);
    return loader ? Error{ErrorCode::kInternal, "accepted", ""} : loader.error();
  };
  const Error data = refused([](auto& s) { s.dataset_digest = "0123"; });
  EXPECT_EQ(data.code, ErrorCode::kConflict);
  EXPECT_THAT(data.what, HasSubstr("0123"));
  EXPECT_THAT(data.what, HasSubstr(data_->digest()));
  EXPECT_THAT(refused([](auto& s) { s.seed = 4; }).what, HasSubstr("seed 4"));
  EXPECT_THAT(refused([](auto& s) { s.sequence_length = 64; }).what,
              HasSubstr("sequence length 64"));
  EXPECT_EQ(refused([](auto& s) { s.index = 1 << 20; }).code, ErrorCode::kCorrupt);
  EXPECT_TRUE(Loader::open(options(), good));
}

TEST_F(LoaderTest, TextShorterThanASequenceIsAnError) {
  auto long_sequences = options();
  long_sequences.shape.sequence_length = static_cast<int64_t>(all_.size());
  const auto loader = Loader::open(long_sequences);
  ASSERT_FALSE(loader);
  EXPECT_EQ(loader.error().code, ErrorCode::kInvalidArgument);
  long_sequences.shape.sequence_length -= 1; // exactly one sample, repeated in each epoch
  auto shortest = Loader::open(long_sequences);
  ASSERT_TRUE(shortest);
  EXPECT_EQ((*shortest)->next()->rows_from[1].epoch, 1);
}

} // namespace
} // namespace nsa::data
