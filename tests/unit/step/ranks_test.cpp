// Compares n ranks that each have a part of a global batch with one rank that has all of it: the
// whole model, its gradients, losses and weights. The reducer and the collectives are the real
// ones. tests/gpu/step/ranks_test.cpp does the same on GPUs.
#include "tests/support/ranks_training.h"
#include "tests/support/small_model.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <thread>

namespace nsa::train {
namespace {

using namespace std::chrono_literals;
using test::relative_error;
using Outcome = test::RanksOutcome;

model::ModelConfig small_model() {
  model::ModelConfig c = test::small_model();
  c.nsa.compression = model::Compression::kMlp;
  return c;
}

runtime::Runtime& cpu() { // the number of threads can be set once per process
  static const std::unique_ptr<runtime::Runtime> runtime =
      *runtime::make_cpu_runtime({.device = spec::Device::kCpu});
  return *runtime;
}

Outcome run(int world, const test::RanksWay& way) {
  const at::Tensor text = test::ranks_text(way);
  const auto train = [&](comm::Collectives& collectives) {
    at::set_num_threads(1);
    return test::train_rank(way, text, cpu(), collectives);
  };
  if (world == 1) return train(*comm::make_single_rank_collectives());
  const test::TemporaryFolder place;
  std::vector<Outcome> outcomes(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < world; ++r)
    ranks.emplace_back([&, r] {
      auto collectives = comm::make_cpu_collectives(r, world, {place.path(), -1, 60s}, 60s);
      ASSERT_TRUE(collectives);
      outcomes[size_t(r)] = train(**collectives);
    });
  for (auto& t : ranks)
    t.join();
  for (const Outcome& other : outcomes)
    EXPECT_TRUE(at::equal(other.masters, outcomes[0].masters)) << "all ranks have the same bits";
  return outcomes[0];
}

TEST(Ranks, InFp32AreOneRankToAMillionth) {
  const test::RanksWay way{.model = small_model()};
  const Outcome one = run(1, way);
  for (const int world : {2, 4}) {
    const Outcome many = run(world, way);
    EXPECT_LE(relative_error(many.first_gradient, one.first_gradient), 1e-6) << world;
    EXPECT_LE(relative_error(many.masters, one.masters), 1e-6) << world;
    for (size_t step = 0; step < one.losses.size(); ++step)
      EXPECT_NEAR(many.losses[step], one.losses[step], 1e-6 * one.losses[step])
          << world << " ranks, step " << step + 1;
  }
}

// The error of several ranks against FP32 is at most one and a half times that of one rank.
// Gradients are sent as FP32 or BF16.
TEST(Ranks, InBf16AreNoWorseThanOneRank) {
  const Outcome exact = run(1, {.model = small_model()});
  for (const PrecisionMode mode : {PrecisionMode::kMaster, PrecisionMode::kStochasticRounding}) {
    test::RanksWay way{.model = small_model(), .type = at::kBFloat16, .mode = mode};
    const Outcome one = run(1, way);
    const double gradient = relative_error(one.first_gradient, exact.first_gradient),
                 weights = relative_error(one.masters, exact.masters);
    EXPECT_GT(gradient, 1e-4) << "BF16 was computed in";
    for (const int world : {2, 4})
      for (const bool compress : {false, true}) {
        way.options.compress.reset();
        if (compress) way.options.compress = at::kBFloat16;
        const Outcome many = run(world, way);
        EXPECT_LE(relative_error(many.first_gradient, exact.first_gradient), 1.5 * gradient)
            << world << (compress ? " compressed" : "");
        EXPECT_LE(relative_error(many.masters, exact.masters), 1.5 * weights)
            << world << (compress ? " compressed" : "");
      }
  }
}

} // namespace
} // namespace nsa::train
