// Ranks that share a batch, with real collectives between threads.
#include "tests/support/temporary_folder.h"
#include "tests/support/three_parameters.h"
#include "worker/step/state_gatherer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

namespace nsa::train {
namespace {

using namespace std::chrono_literals;

// Two ranks, each with half of the batch, end with the same weights as one rank with all of it.
// They update everything or a shard each.
constexpr int kSteps = 5;

struct Result {
  at::Tensor masters, first, second; // without padding
};

Result result_of(const FlatState& state) {
  const auto without_padding = [&](const at::Tensor& flat) {
    std::vector<at::Tensor> each;
    for (size_t i = 0; i < state.parameter_count(); ++i)
      each.push_back(state.slice(flat, i).flatten());
    return at::cat(each);
  };
  return {without_padding(state.masters), without_padding(state.first_moments),
          without_padding(state.second_moments)};
}

struct Alone {
  Result result;
  std::vector<double> norms;       // of the gradient of each step
  std::vector<at::Tensor> squares; // of its groups
};

Alone train_alone(at::ScalarType type) {
  World world(type);
  Optimizer optimizer(world.state, section());
  Alone alone;
  for (int step = 1; step <= kSteps; ++step) {
    world.reducer.begin_step(uint64_t(step));
    for (int part = 0; part < 2; ++part) {
      world.reducer.begin_micro_step(part == 1);
      linear_loss(world.state, some_weights(unsigned(10 * step + part)), 0.5).backward();
    }
    EXPECT_TRUE(world.reducer.finish_step(/*by_group=*/true));
    alone.squares.push_back(world.state.group_square_sums().clone());
    alone.norms.push_back(optimizer.step(1e-2, at::ones({})).item<double>());
  }
  alone.result = result_of(world.state);
  return alone;
}

struct Way {
  at::ScalarType type;
  bool shards;
  std::optional<at::ScalarType> on_the_wire;
  double norm_tolerance;
};

std::mutex seed_mutex; // at::manual_seed is global, and the ranks here are threads

// Trains as `rank` of two ranks that meet in `place`.
void train_as(Rank rank, const Way& way, const std::filesystem::path& place, const Alone& alone,
              Result& result) {
  auto collectives = comm::make_cpu_collectives(rank, 2, {place, -1, 60s}, 60s);
  ASSERT_TRUE(collectives);
  std::unique_ptr<World> w;
  {
    const std::lock_guard lock(seed_mutex);
    const Shard shard = way.shards ? Shard{size_t(rank), 2} : Shard{};
    w = std::make_unique<World>(way.type, ReducerOptions{.compress = way.on_the_wire},
                                std::move(*collectives), 16, PrecisionMode::kMaster, shard);
  }
  EXPECT_EQ(w->state.plan().buckets.size(), 3u);
  Optimizer optimizer(w->state, section());
  StateGatherer gatherer(w->state, *w->collectives);
  EXPECT_EQ(gatherer.needed(), way.shards);
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<at::Tensor> weights;
    {
      const std::lock_guard lock(seed_mutex);
      weights = some_weights(unsigned(10 * step + rank));
    }
    w->reducer.begin_step(uint64_t(step));
    w->reducer.begin_micro_step(true);
    linear_loss(w->state, weights, 0.5).backward();
    w->state.sync_scalars().fill_(rank + 1.0);
    ASSERT_TRUE(w->reducer.finish_step(/*by_group=*/step % 2 == 0));
    const auto squares = w->state.group_square_sums();
    EXPECT_TRUE(
        at::allclose(squares.sum(), step % 2 == 0 ? w->state.square_sum() : at::zeros({}), 1e-5));
    if (step % 2 == 0) {
      EXPECT_TRUE(at::allclose(squares, alone.squares[size_t(step - 1)], 2 * way.norm_tolerance));
    }
    EXPECT_EQ(w->state.sync_scalars()[3].item<float>(), 3.0f) << "the sync scalars are summed too";
    const double norm = optimizer.step(1e-2, at::ones({})).item<double>();
    EXPECT_NEAR(norm, alone.norms[size_t(step - 1)], way.norm_tolerance * norm);
    if (!way.shards) continue;
    runtime::Stopwatch waits = w->reducer.take_waits();
    const size_t marks = waits.marks();
    ASSERT_TRUE(gatherer.weights(uint64_t(step), waits));
    EXPECT_EQ(waits.marks(), marks + 2);
  }
  if (way.shards) {
    ASSERT_TRUE(gatherer.masters_and_moments(kSteps));
  }
  result = result_of(w->state);
}

void expect_two_ranks_equal_one(at::ScalarType type) {
  // For tolerances: gradients and weights are BF16.
  const double scale = type == at::kFloat ? 1 : 1e4;
  const Alone alone = train_alone(type);
  for (const bool shards : {false, true})
    for (const auto on_the_wire : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16),
                                   std::optional(at::kHalf)}) {
      SCOPED_TRACE(testing::Message() << "shards " << shards << ", on the wire "
                                      << at::toString(on_the_wire.value_or(at::kFloat)));
      const bool exact = !on_the_wire;
      const Way way{type, shards, on_the_wire, exact ? 1e-6 * scale : 1e-2};
      const test::TemporaryFolder place;
      std::vector<Result> results(2);
      std::vector<std::thread> ranks;
      for (Rank r = 0; r < 2; ++r)
        ranks.emplace_back([&, r] { train_as(r, way, place.path(), alone, results[size_t(r)]); });
      for (auto& rank : ranks)
        rank.join();
      for (const auto member : {&Result::masters, &Result::first, &Result::second}) {
        EXPECT_TRUE(at::equal(results[0].*member, results[1].*member))
            << "all ranks have the same bits";
        EXPECT_TRUE(at::allclose(results[0].*member, alone.result.*member,
                                 exact ? 1e-6 * scale : 2e-2, exact ? 1e-7 * scale : 1e-3));
      }
    }
}

TEST(GradientReducer, RanksTogetherEqualOneRank) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    expect_two_ranks_equal_one(type);
}

} // namespace
} // namespace nsa::train
