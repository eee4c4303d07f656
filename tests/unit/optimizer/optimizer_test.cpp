// Masters and updates of a few tensors, compared with plain loops in double. It covers every mode,
// with and without shards.
#include "worker/optimizer/optimizer.h"

#include "tests/support/three_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace nsa::train {
namespace {

TEST(FlatState, ParametersBecomeViewsOfOneBuffer) {
  const auto parameters = make_parameters(at::kFloat);
  FlatState state(parameters, 1 << 20, 4);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(state.tensor(i).detach(), parameters[i].initial));
  state.masters.fill_(7.0);
  EXPECT_EQ(state.tensor(0)[0][0].item<float>(), 7.0f) << "in FP32 masters are the weights";
  FlatState half(make_parameters(at::kBFloat16), 1 << 20, 4);
  half.masters.fill_(1.00390625 + 1e-4); // between two BF16 values
  half.publish_masters();
  EXPECT_EQ(half.tensor(0)[0][0].item<float>(), 1.0078125f);
  EXPECT_EQ(half.tensor(0).scalar_type(), at::kBFloat16);
}

// Compared with sums in double, for one rank and for three shards that cut parameters. The sums of
// groups add up to the whole. The bits of the whole do not depend on the groups.
TEST(FlatState, SquareSumsOfGroupsAddUpToTheWhole) {
  const std::vector<std::pair<std::vector<int64_t>, const char*>> parameters = {
      {{7, 9}, "embedding"}, {{33}, "0"}, {{5, 40}, "0"},      {{17}, "1"},
      {{64, 3}, "1"},        {{2}, ""},   {{21}, "final_norm"}};
  at::manual_seed(8);
  std::vector<at::Tensor> gradients;
  std::map<std::string, double> exact;
  for (const auto& [shape, group] : parameters) {
    gradients.push_back(at::randn(shape).mul_(double(gradients.size() + 1)));
    exact[group] += gradients.back().to(at::kDouble).square().sum().item<double>();
  }
  for (const size_t shards : {size_t(1), size_t(3)})
    for (const size_t bucket_bytes : {size_t(16), size_t(1000), size_t(1) << 20}) {
      SCOPED_TRACE(testing::Message() << shards << " shards, buckets of " << bucket_bytes);
      std::map<std::string, double> found;
      double whole = 0;
      for (size_t shard = 0; shard < shards; ++shard) {
        std::vector<Parameter> leaves;
        for (const auto& [shape, group] : parameters)
          leaves.push_back({"p" + std::to_string(leaves.size()),
                            at::empty(shape).set_requires_grad(true), at::zeros(shape), true,
                            group});
        FlatState state(leaves, bucket_bytes, 4, PrecisionMode::kMaster, {shard, shards});
        for (size_t i = 0; i < gradients.size(); ++i)
          state.slice(state.gradients, i).copy_(gradients[i]);
        state.sum_squares();
        const float alone = state.square_sum().item<float>();
        EXPECT_EQ(state.group_square_sums().abs().sum().item<float>(), 0.0f);
        state.sum_squares(/*by_group=*/true);
        EXPECT_EQ(state.square_sum().item<float>(), alone);
        whole += alone;
        ASSERT_EQ(state.groups(), (std::vector<std::string>{"embedding", "0", "1", "final_norm"}));
        for (size_t g = 0; g < state.groups().size(); ++g)
          found[state.groups()[g]] += state.group_square_sums()[int64_t(g)].item<double>();
        EXPECT_EQ(state.agreed_words().numel(), 16 + 4) << "in one piece";
        EXPECT_TRUE(state.agreed_words()[4].is_alias_of(state.square_sum()));
      }
      double sum = exact.at("");
      for (const auto& [group, squares] : found) {
        EXPECT_NEAR(squares, exact.at(group), 1e-6 * exact.at(group)) << group;
        sum += squares;
      }
      EXPECT_NEAR(sum, whole, 1e-6 * whole);
    }
}

// AdamW as in the paper's algorithm 2, in double.
struct ReferenceAdamW {
  std::vector<double> w, m, v;
  int t = 0;
  void step(const std::vector<double>& g, const spec::TrainSection& s, double rate, double clip,
            double decay) {
    ++t;
    for (size_t i = 0; i < w.size(); ++i) {
      const double gi = g[i] * clip;
      m[i] = s.beta1 * m[i] + (1 - s.beta1) * gi;
      v[i] = s.beta2 * v[i] + (1 - s.beta2) * gi * gi;
      const double mh = m[i] / (1 - std::pow(s.beta1, t)), vh = v[i] / (1 - std::pow(s.beta2, t));
      w[i] -= rate * decay * w[i];
      w[i] -= rate * mh / (std::sqrt(vh) + s.epsilon);
    }
  }
};

std::vector<double> to_vector(const at::Tensor& t) {
  const at::Tensor d = t.detach().to(at::kDouble).contiguous().reshape({-1});
  return {d.data_ptr<double>(), d.data_ptr<double>() + d.numel()};
}

TEST(Optimizer, IsAdamWWithClippingAndNoDecayOnGains) {
  World w(at::kFloat);
  const spec::TrainSection train = section();
  Optimizer optimizer(w.state, train);
  std::vector<ReferenceAdamW> reference(3);
  for (size_t i = 0; i < 3; ++i) {
    reference[i].w = to_vector(w.state.slice(w.state.masters, i));
    reference[i].m.assign(reference[i].w.size(), 0);
    reference[i].v = reference[i].m;
  }
  for (int step = 1; step <= 20; ++step) {
    const auto weights = some_weights(unsigned(step));
    const double scale = step % 2 == 0 ? 1.0 : 0.01; // alternately above and below the clip limit
    w.reducer.begin_step(uint64_t(step));
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, weights, scale).backward();
    ASSERT_TRUE(w.reducer.finish_step());
    double norm = 0;
    for (const auto& t : weights)
      for (const double g : to_vector(t))
        norm += g * g * scale * scale;
    norm = std::sqrt(norm);
    const double rate = 1e-2 / step;
    const at::Tensor reported = optimizer.step(rate, at::ones({}));
    EXPECT_NEAR(reported.item<double>(), norm, 1e-5 * norm);
    const double clip = norm > 1.0 ? 1.0 / norm : 1.0;
    for (size_t i = 0; i < 3; ++i) {
      auto g = to_vector(weights[i]);
      for (double& x : g)
        x *= scale;
      reference[i].step(g, train, rate, clip, i == 2 ? 0.0 : train.weight_decay);
      const auto actual = to_vector(w.state.slice(w.state.masters, i));
      for (size_t k = 0; k < actual.size(); ++k)
        ASSERT_NEAR(actual[k], reference[i].w[k], 2e-6) << "parameter " << i << " step " << step;
    }
  }
  EXPECT_EQ(w.state.updates.item<float>(), 20.0f);
}

class EveryMode : public testing::TestWithParam<PrecisionMode> {};
INSTANTIATE_TEST_SUITE_P(, EveryMode,
                         testing::Values(PrecisionMode::kMaster, PrecisionMode::kStochasticRounding,
                                         PrecisionMode::kPure));

TEST_P(EveryMode, NonFiniteGradientOrLossChangesNothing) {
  World w(at::kBFloat16, {}, nullptr, 16, GetParam());
  Optimizer optimizer(w.state, section());
  const at::Tensor masters = w.state.masters.clone();
  auto one_step = [&](double factor, double loss) {
    w.reducer.begin_step(1);
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, some_weights(3), factor).backward();
    EXPECT_TRUE(w.reducer.finish_step());
    return optimizer.step(1e-2, at::full({}, loss));
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(std::isfinite(one_step(kNan, 1.0).item<double>()));
  EXPECT_TRUE(std::isfinite(one_step(1.0, kNan).item<double>()));
  EXPECT_TRUE(at::equal(w.state.masters, masters));
  EXPECT_EQ(w.state.first_moments.abs().max().item<float>(), 0.0f);
  EXPECT_EQ(w.state.updates.item<float>(), 0.0f);
  one_step(1.0, 1.0);
  EXPECT_FALSE(at::equal(w.state.masters, masters));
  EXPECT_EQ(w.state.updates.item<float>(), 1.0f);
}

// Each gradient moves every weight by a hundredth of its resolution. Masters follow it exactly,
// stochastic rounding follows it on average, and rounding to the nearest value ignores it.
TEST(PrecisionModes, SmallUpdatesCountUnlessPure) {
  constexpr int kSteps = 60;
  spec::TrainSection train = section();
  train.gradient_clip = 0;
  train.weight_decay = 0;
  const auto moved = [&](PrecisionMode mode) {
    World w(at::kBFloat16, {}, nullptr, 1 << 20, mode);
    w.state.masters.fill_(1.0); // padding too, though it has no gradient
    w.state.publish_masters();
    Optimizer optimizer(w.state, train);
    for (int step = 1; step <= kSteps; ++step) {
      w.reducer.begin_step(uint64_t(step));
      w.reducer.begin_micro_step(true);
      linear_loss(w.state, {at::ones({8, 3}), at::ones({5}), at::ones({17})}, 1.0).backward();
      EXPECT_TRUE(w.reducer.finish_step());
      // A constant gradient moves each weight by the learning rate.
      optimizer.step(0x1p-8 / 100, at::ones({}));
    }
    double sum = 0;
    for (size_t i = 0; i < 3; ++i)
      sum += (1.0 - w.state.slice(w.state.masters, i).to(at::kDouble)).sum().item<double>();
    return sum / (24 + 5 + 17);
  };
  const double whole = kSteps * 0x1p-8 / 100;
  EXPECT_NEAR(moved(PrecisionMode::kMaster), whole, kSteps * 0x1p-24) << "a rounding of FP32 each";
  EXPECT_EQ(moved(PrecisionMode::kPure), 0);
  // There are 46 weights. Each has a resolution of 2^-8, so each is wrong by at most half of it.
  EXPECT_NEAR(moved(PrecisionMode::kStochasticRounding), whole, 4 * 0x1p-9 / std::sqrt(46.0));
}

TEST(PrecisionModes, KeepWhatTheySay) {
  for (const auto& [mode, master, moment] :
       {std::tuple{PrecisionMode::kMaster, at::kFloat, at::kFloat},
        std::tuple{PrecisionMode::kStochasticRounding, at::kBFloat16, at::kFloat},
        std::tuple{PrecisionMode::kPure, at::kBFloat16, at::kBFloat16}}) {
    World w(at::kBFloat16, {}, nullptr, 16, mode);
    EXPECT_EQ(w.state.masters.scalar_type(), master);
    EXPECT_EQ(w.state.first_moments.scalar_type(), moment);
    EXPECT_EQ(w.state.second_moments.scalar_type(), moment);
    EXPECT_EQ(w.state.gradients.scalar_type(), at::kFloat) << "sums are FP32 in every mode";
    EXPECT_EQ(w.state.tensor(0).scalar_type(), at::kBFloat16);
    EXPECT_EQ(w.state.tensor(0).data_ptr() == w.state.slice(w.state.masters, 0).data_ptr(),
              mode != PrecisionMode::kMaster);
  }
  EXPECT_THROW(World(at::kFloat, {}, nullptr, 16, PrecisionMode::kPure), std::invalid_argument);
}

// One step of either mode equals AdamW from the same BF16 values, except for one rounding.
TEST(PrecisionModes, AreAdamWUpToARounding) {
  for (const PrecisionMode mode : {PrecisionMode::kStochasticRounding, PrecisionMode::kPure}) {
    World w(at::kBFloat16, {}, nullptr, 16, mode);
    const spec::TrainSection train = section();
    Optimizer optimizer(w.state, train);
    for (int step = 1; step <= 3; ++step) {
      std::vector<ReferenceAdamW> reference(3);
      const auto weights = some_weights(unsigned(step));
      double norm = 0;
      for (size_t i = 0; i < 3; ++i) {
        reference[i].w = to_vector(w.state.slice(w.state.masters, i));
        reference[i].m = to_vector(w.state.slice(w.state.first_moments, i));
        reference[i].v = to_vector(w.state.slice(w.state.second_moments, i));
        reference[i].t = step - 1;
        for (const double g : to_vector(weights[i].to(at::kBFloat16)))
          norm += g * g;
      }
      w.reducer.begin_step(uint64_t(step));
      w.reducer.begin_micro_step(true);
      linear_loss(w.state, weights, 1.0).backward();
      ASSERT_TRUE(w.reducer.finish_step());
      optimizer.step(0.05, at::ones({}));
      for (size_t i = 0; i < 3; ++i) {
        reference[i].step(to_vector(weights[i].to(at::kBFloat16)), train, 0.05,
                          std::min(1.0, 1.0 / std::sqrt(norm)), i == 2 ? 0.0 : train.weight_decay);
        const auto found = to_vector(w.state.slice(w.state.masters, i));
        for (size_t k = 0; k < found.size(); ++k)
          EXPECT_NEAR(found[k], reference[i].w[k], std::abs(reference[i].w[k]) * 0x1p-7 + 1e-6)
              << "step " << step << " parameter " << i;
      }
    }
  }
}

// In every mode a rank changes its own shard and nothing else, and all shards together equal one
// rank's update. This includes shards that end within a parameter, and weights that are copies of
// masters.
TEST_P(EveryMode, ShardsTogetherUpdateLikeOne) {
  const auto draw = [](FlatState& state) {
    at::manual_seed(5);
    for (size_t i = 0; i < state.parameter_count(); ++i)
      state.slice(state.gradients, i).copy_(at::randn(state.shape(i)));
  };
  World one(at::kBFloat16, {}, nullptr, 150, GetParam());
  Optimizer whole(one.state, section());
  draw(one.state);
  one.state.sum_squares();
  const double norm = whole.step(1e-2, at::ones({})).item<double>();
  constexpr size_t kShards = 3;
  std::vector<std::unique_ptr<World>> worlds;
  at::Tensor squares = at::zeros({});
  for (size_t s = 0; s < kShards; ++s) {
    worlds.push_back(std::make_unique<World>(at::kBFloat16, ReducerOptions{}, nullptr, 150,
                                             GetParam(), Shard{s, kShards}));
    draw(worlds[s]->state);
    worlds[s]->state.sum_squares();
    squares = squares + worlds[s]->state.square_sum();
  }
  ASSERT_NEAR(squares.sqrt().item<double>(), norm, 1e-6 * norm);
  for (size_t s = 0; s < kShards; ++s) {
    FlatState& state = worlds[s]->state;
    const at::Tensor before = state.masters.clone();
    state.square_sum().copy_(one.state.square_sum());
    Optimizer optimizer(state, section());
    optimizer.step(1e-2, at::ones({}));
    at::Tensor own = at::zeros_like(state.masters, at::kBool);
    for (const Range& range : state.own())
      state.range(own, range).fill_(true);
    EXPECT_TRUE(at::equal(state.masters.masked_select(own.logical_not()),
                          before.masked_select(own.logical_not())));
    // Copies the shard into the first world, as the gatherer does.
    for (auto member : {&FlatState::masters, &FlatState::first_moments, &FlatState::second_moments})
      for (const Range& range : state.own())
        state.range(worlds[0]->state.*member, range).copy_(state.range(state.*member, range));
    if (const auto weights = state.rounded_weights())
      for (const Range& range : state.own()) {
        EXPECT_TRUE(at::equal(state.range(*weights, range),
                              state.range(state.masters, range).to(at::kBFloat16)));
      }
  }
  for (size_t i = 0; i < 3; ++i)
    for (auto member :
         {&FlatState::masters, &FlatState::first_moments, &FlatState::second_moments}) {
      const at::Tensor found = worlds[0]->state.slice(worlds[0]->state.*member, i);
      const at::Tensor wanted = one.state.slice(one.state.*member, i);
      // The random bits depend on the position in the flat buffer, and padding changes that.
      const bool rounded =
          GetParam() == PrecisionMode::kStochasticRounding && member == &FlatState::masters;
      EXPECT_TRUE(
          at::allclose(found.to(at::kFloat), wanted.to(at::kFloat), rounded ? 8e-3 : 1e-6, 1e-7))
          << "parameter " << i;
    }
}

} // namespace
} // namespace nsa::train
