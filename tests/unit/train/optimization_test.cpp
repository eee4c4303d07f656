// Masters, gradients and updates on a few tensors, held against plain loops in double.
#include "tests/support/first_of_two.h"
#include "tests/support/temporary_folder.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/state_io.h"
#include "worker/optimizer/stochastic_rounding.h"
#include "worker/step/gradient_reducer.h"
#include "worker/step/state_gatherer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cmath>
#include <thread>

namespace nsa::train {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::FirstOfTwo;
using ::testing::HasSubstr;

// Three parameters, each of another shape; the last one is a gain without weight decay.
std::vector<Parameter> make_parameters(at::ScalarType type) {
  at::manual_seed(5);
  std::vector<Parameter> parameters;
  const std::vector<std::vector<int64_t>> shapes = {{8, 3}, {5}, {17}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor initial = at::randn(shapes[i]);
    at::Tensor leaf = at::empty(shapes[i], type).set_requires_grad(true);
    parameters.push_back({"p" + std::to_string(i), leaf, initial, i != 2});
  }
  return parameters;
}

spec::TrainSection section() {
  spec::TrainSection t;
  t.steps = 100;
  t.gradient_clip = 1.0;
  t.weight_decay = 0.1;
  return t;
}

// One rank's training world.
struct World {
  explicit World(at::ScalarType type, ReducerOptions options = {},
                 std::unique_ptr<comm::Collectives> given = nullptr, size_t bucket_bytes = 16,
                 PrecisionMode mode = PrecisionMode::kMaster, Shard shard = {})
      : state(make_parameters(type), bucket_bytes, 4, mode, shard),
        collectives(given ? std::move(given) : comm::make_single_rank_collectives()),
        reducer(state, *collectives, options) {}
  FlatState state;
  std::unique_ptr<comm::Collectives> collectives;
  GradientReducer reducer;
};

// A loss whose gradient with respect to parameter i is `scale` * weights[i].
at::Tensor linear_loss(const FlatState& state, const std::vector<at::Tensor>& weights, double scale,
                       size_t use = 3) {
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < use; ++i)
    loss = loss + (state.tensor(i).to(at::kFloat) * weights[i]).sum() * scale;
  return loss;
}

std::vector<at::Tensor> some_weights(unsigned seed) {
  at::manual_seed(seed);
  return {at::randn({8, 3}), at::randn({5}), at::randn({17})};
}

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

TEST(GradientReducer, AccumulatesOverMicroStepsInFp32) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    World w(type);
    w.reducer.begin_step(1);
    at::Tensor expected = at::zeros({8, 3});
    for (int m = 0; m < 4; ++m) {
      const auto weights = some_weights(unsigned(m));
      w.reducer.begin_micro_step(m == 3);
      linear_loss(w.state, weights, 0.25).backward();
      // What backward hands over has the parameter's type; from there on the sum is FP32.
      expected += (weights[0] * 0.25).to(type).to(at::kFloat);
    }
    ASSERT_TRUE(w.reducer.finish_step());
    EXPECT_TRUE(at::allclose(w.state.slice(w.state.gradients, 0), expected, 1e-6, 1e-7));
    w.reducer.begin_step(2);
    EXPECT_EQ(w.state.gradients.abs().max().item<float>(), 0.0f);
  }
}

// Gathered or added one by one, the sums are the same bit for bit; nothing of the step before is
// left in those that no gradient came for.
TEST(GradientReducer, GatheringChangesNoSum) {
  for (const size_t bucket_bytes : {size_t(16), size_t(1) << 20}) {
    World plain(at::kBFloat16, {.find_unused = true, .gather = false}, nullptr, bucket_bytes);
    World gathering(at::kBFloat16, {.find_unused = true, .gather = true}, nullptr, bucket_bytes);
    // How many parameters get a gradient in each of three micro-steps.
    const std::vector<std::vector<size_t>> steps = {{3, 3, 3}, {2, 3, 1}, {2, 1, 2}, {1, 1, 1}};
    for (size_t step = 0; step < steps.size(); ++step) {
      for (World* w : {&plain, &gathering}) {
        w->reducer.begin_step(step + 1);
        EXPECT_EQ(w->state.sync_scalars().abs().max().item<float>(), 0.0f);
        for (size_t m = 0; m < 3; ++m) {
          w->reducer.begin_micro_step(m == 2);
          linear_loss(w->state, some_weights(unsigned(3 * step + m)), 0.25, steps[step][m])
              .backward();
          w->reducer.end_micro_step();
        }
        w->state.sync_scalars().fill_(1.0f);
        ASSERT_TRUE(w->reducer.finish_step());
      }
      EXPECT_TRUE(at::equal(plain.state.gradients, gathering.state.gradients)) << "step " << step;
    }
  }
}

TEST(GradientReducer, MissingGradientsAreAnErrorUnlessAllowed) {
  const auto weights = some_weights(1);
  World strict(at::kFloat);
  strict.reducer.begin_step(1);
  strict.reducer.begin_micro_step(true);
  linear_loss(strict.state, weights, 1.0, 2).backward();
  try {
    (void)strict.reducer.finish_step();
    FAIL() << "p2 has no gradient";
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), HasSubstr("p2"));
    EXPECT_THAT(e.what(), HasSubstr("find_unused"));
  }
  World lenient(at::kFloat, {.find_unused = true});
  lenient.reducer.begin_step(1);
  lenient.reducer.begin_micro_step(true);
  linear_loss(lenient.state, weights, 1.0, 2).backward();
  ASSERT_TRUE(lenient.reducer.finish_step());
  EXPECT_EQ(lenient.state.slice(lenient.state.gradients, 2).abs().max().item<float>(), 0.0f);
}

TEST(GradientReducer, StaticGraphHoldsTheFirstStepsSet) {
  const auto weights = some_weights(1);
  World w(at::kFloat, {.static_graph = true});
  for (uint64_t step = 1; step <= 2; ++step) {
    w.reducer.begin_step(step);
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, weights, 1.0, 2).backward();
    ASSERT_TRUE(w.reducer.finish_step());
  }
  w.reducer.begin_step(3);
  w.reducer.begin_micro_step(true);
  EXPECT_THROW(linear_loss(w.state, weights, 1.0, 3).backward(), std::runtime_error);
}

// A rank without its peer that keeps what each reduction was started with.
class SeesStarts : public FirstOfTwo {
public:
  explicit SeesStarts(std::vector<at::Tensor>& starts) : starts_(starts) {}
  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor& tensor, comm::Tag tag) override {
    starts_.push_back(tensor.clone());
    return alone_->all_reduce_sum(tensor, tag);
  }

private:
  std::vector<at::Tensor>& starts_;
  std::unique_ptr<comm::Collectives> alone_ = comm::make_single_rank_collectives();
};

// Under a static graph a bucket does not wait for a parameter that never gets a gradient: what it
// leaves with must be zero there, and not what an earlier step or the memory held.
TEST(GradientReducer, StaticGraphReducesZerosWhereNoGradientComes) {
  for (const bool gather : {false, true}) {
    std::vector<at::Tensor> starts;
    World w(at::kBFloat16, {.static_graph = true, .gather = gather},
            std::make_unique<SeesStarts>(starts), 150); // the last two share the first bucket
    w.state.sync_scalars().zero_();
    for (uint64_t step = 1; step <= 3; ++step) {
      starts.clear();
      w.reducer.begin_step(step);
      if (gather) w.state.gradients.fill_(NAN); // sums are written before they are read
      w.state.sync_scalars().zero_();
      for (const bool last : {false, true}) {
        w.reducer.begin_micro_step(last);
        linear_loss(w.state, some_weights(unsigned(step)), 1.0, 2).backward();
        w.reducer.end_micro_step();
      }
      ASSERT_TRUE(w.reducer.finish_step());
      const BucketPlan::Slot& slot = w.state.plan().slots[2]; // without a gradient
      ASSERT_EQ(starts.size(), w.state.plan().buckets.size());
      const auto at = static_cast<int64_t>(slot.offset - w.state.plan().buckets[slot.bucket].begin);
      const at::Tensor sent = starts[slot.bucket].narrow(0, at, static_cast<int64_t>(slot.count));
      EXPECT_TRUE(sent.eq(0).all().item<bool>()) << "step " << step << " gather " << gather;
    }
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
    const double scale = step % 2 == 0 ? 1.0 : 0.01; // above and below the clip limit
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

TEST(StochasticRounding, IsExactOnAverageAndLeavesBf16ValuesAlone) {
  constexpr int64_t kDraws = 1 << 18; // of every value
  const at::Tensor updates = at::full({}, 7.0f);
  for (const float value : {1.0f + 0x1p-9f, -1.0f - 0x1p-11f, 3e-5f, -2.7182818f, 1e-30f}) {
    const at::Tensor from = at::full({kDraws}, value);
    const at::Tensor to = at::empty({kDraws}, at::kBFloat16);
    round_stochastically(from, to, 3, updates, 0);
    const at::Tensor wide = to.to(at::kDouble);
    const double below = wide.min().item<double>(), above = wide.max().item<double>();
    const double step = above - below; // one step of BF16 around the value
    EXPECT_LT(below, value);
    EXPECT_GT(above, value);
    EXPECT_LE(step, std::abs(value) * 0x1p-7);
    EXPECT_EQ((wide.eq(below).sum() + wide.eq(above).sum()).item<int64_t>(), kDraws);
    // The mean of n draws between two neighbours strays by at most step / 2 / sqrt(n) a deviation.
    EXPECT_NEAR(wide.mean().item<double>(), value, 4 * step / 2 / std::sqrt(double(kDraws)))
        << value;
  }
  at::manual_seed(1);
  const at::Tensor exact = at::randn({5000}).to(at::kBFloat16);
  at::Tensor to = at::empty_like(exact);
  round_stochastically(exact.to(at::kFloat), to, 3, updates, 0);
  EXPECT_TRUE(at::equal(to, exact));
  round_stochastically(at::full({5000}, INFINITY), to, 3, updates, 0);
  EXPECT_TRUE(to.isinf().all().item<bool>()) << "what is not finite stays so";
}

// Bits that are functions of (seed, update, index) alone, and otherwise unlike each other.
TEST(StochasticRounding, DrawsByCounter) {
  constexpr int64_t kCount = 100000;                          // several chunks
  const at::Tensor from = at::full({kCount}, 1.0f + 0x1p-8f); // half-way: a fair coin
  const auto draw = [&](uint64_t seed, float update, int64_t first, int64_t count) {
    const at::Tensor to = at::empty({count}, at::kBFloat16);
    round_stochastically(from.narrow(0, 0, count), to, seed, at::full({}, update), first);
    return to.gt(1.0).to(at::kDouble);
  };
  const at::Tensor whole = draw(1, 5, 0, kCount);
  EXPECT_TRUE(at::equal(whole, draw(1, 5, 0, kCount)));
  EXPECT_TRUE(at::equal(whole.narrow(0, 40001, 1000), draw(1, 5, 40001, 1000)))
      << "the cut into chunks and parts does not matter";
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  EXPECT_TRUE(at::equal(whole, draw(1, 5, 0, kCount)));
  at::set_num_threads(threads);
  const auto correlation = [&](const at::Tensor& a, const at::Tensor& b) {
    return ((a - 0.5) * (b - 0.5)).mean().item<double>() * 4;
  };
  const double limit = 5 / std::sqrt(double(kCount - 1)); // five deviations
  EXPECT_LT(std::abs(correlation(whole, draw(2, 5, 0, kCount))), limit) << "another seed";
  EXPECT_LT(std::abs(correlation(whole, draw(1, 6, 0, kCount))), limit) << "another update";
  EXPECT_LT(std::abs(correlation(whole.narrow(0, 1, kCount - 1), whole.narrow(0, 0, kCount - 1))),
            limit)
      << "the neighbour";
}

// A gradient that moves every weight by a hundredth of its resolution: masters follow it exactly,
// random rounding on average, rounding to the nearest not at all.
TEST(PrecisionModes, SmallUpdatesCountUnlessPure) {
  constexpr int kSteps = 60;
  spec::TrainSection train = section();
  train.gradient_clip = 0;
  train.weight_decay = 0;
  const auto moved = [&](PrecisionMode mode) {
    World w(at::kBFloat16, {}, nullptr, 1 << 20, mode);
    w.state.masters.fill_(1.0); // padding too: it has no gradient
    w.state.publish_masters();
    Optimizer optimizer(w.state, train);
    for (int step = 1; step <= kSteps; ++step) {
      w.reducer.begin_step(uint64_t(step));
      w.reducer.begin_micro_step(true);
      linear_loss(w.state, {at::ones({8, 3}), at::ones({5}), at::ones({17})}, 1.0).backward();
      EXPECT_TRUE(w.reducer.finish_step());
      optimizer.step(0x1p-8 / 100, at::ones({})); // a constant gradient moves by the rate
    }
    double sum = 0;
    for (size_t i = 0; i < 3; ++i)
      sum += (1.0 - w.state.slice(w.state.masters, i).to(at::kDouble)).sum().item<double>();
    return sum / (24 + 5 + 17);
  };
  const double whole = kSteps * 0x1p-8 / 100;
  EXPECT_NEAR(moved(PrecisionMode::kMaster), whole, kSteps * 0x1p-24) << "a rounding of FP32 each";
  EXPECT_EQ(moved(PrecisionMode::kPure), 0);
  // 46 weights at a resolution of 2^-8 each, at most half of it astray.
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

// One step of either mode is AdamW from the same BF16 values, up to one rounding.
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

// A peer whose answers come when the test says so, and what this rank did in which order.
class ScriptedPeer : public FirstOfTwo {
public:
  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor& tensor, comm::Tag tag) override {
    return start("", tensor, tag);
  }
  std::unique_ptr<comm::Pending> reduce_scatter_sum(const at::Tensor& tensor,
                                                    comm::Tag tag) override {
    return start("scatter ", tensor, tag);
  }
  std::unique_ptr<comm::Pending> all_gather(const at::Tensor& tensor, comm::Tag tag) override {
    return start("gather ", tensor, tag);
  }
  std::unique_ptr<comm::Pending> start(const std::string& what, const at::Tensor& tensor,
                                       comm::Tag tag) {
    notes.push_back(what + "start " + std::to_string(tag.index));
    types.push_back(tensor.scalar_type());
    class Answer : public comm::Pending {
    public:
      Answer(ScriptedPeer& peer, std::string note) : peer_(peer), note_(std::move(note)) {}
      comm::Outcome wait() override {
        peer_.notes.push_back(note_);
        std::this_thread::sleep_for(peer_.answer_takes);
        return {};
      }

    private:
      ScriptedPeer& peer_;
      std::string note_;
    };
    return std::make_unique<Answer>(*this, what + "wait " + std::to_string(tag.index));
  }

  std::vector<std::string> notes;
  std::vector<at::ScalarType> types; // on the wire, by collective
  Duration answer_takes{0};
};

double sum_of_pairs(const runtime::Stopwatch& waits) {
  double seconds = 0;
  EXPECT_EQ(waits.marks() % 2, 0u);
  for (size_t i = 0; i + 1 < waits.marks(); i += 2)
    seconds += waits.milliseconds(i, i + 1) / 1e3;
  return seconds;
}

// Buckets leave while the backward pass still runs, each once, in one order, and none between
// micro-steps; the last one takes the sync scalars along and leaves when they are filled in.
TEST(GradientReducer, BucketsLeaveDuringTheLastBackwardPassOnly) {
  auto given = std::make_unique<ScriptedPeer>();
  ScriptedPeer& peer = *given;
  World w(at::kFloat, {}, std::move(given));
  ASSERT_EQ(w.state.plan().buckets.size(), 3u);
  w.reducer.begin_step(1);
  for (int m = 0; m < 3; ++m) {
    w.reducer.begin_micro_step(m == 2);
    linear_loss(w.state, some_weights(unsigned(m)), 1.0).backward();
    if (m < 2) {
      EXPECT_THAT(peer.notes, ::testing::IsEmpty()) << "between micro-steps";
    }
  }
  EXPECT_THAT(peer.notes, ::testing::ElementsAre("start 0", "start 1")) << "within backward()";
  ASSERT_TRUE(w.reducer.finish_step());
  EXPECT_THAT(peer.notes, ::testing::ElementsAre("start 0", "start 1", "start 2", "wait 0",
                                                 "wait 1", "wait 2"));
}

TEST(GradientReducer, OnTheWireAreGradientsInTheTypeAskedForAndTheTailInFp32) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    auto given = std::make_unique<ScriptedPeer>();
    ScriptedPeer& peer = *given;
    World w(at::kFloat, {.compress = type}, std::move(given));
    w.reducer.begin_step(1);
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, some_weights(1), 1.0).backward();
    ASSERT_TRUE(w.reducer.finish_step());
    EXPECT_THAT(peer.types, ::testing::ElementsAre(type, type, type, at::kFloat));
  }
}

TEST(GradientReducer, ExposedCommunicationIsTheTimeOfTheWaits) {
  for (const bool compressed : {false, true}) {
    auto given = std::make_unique<ScriptedPeer>();
    ScriptedPeer& peer = *given;
    ReducerOptions options;
    if (compressed) options.compress = at::kBFloat16;
    World w(at::kFloat, options, std::move(given));
    for (const auto answer : {Duration(0), Duration(20ms)}) {
      peer.answer_takes = answer;
      w.reducer.begin_step(1);
      w.reducer.begin_micro_step(true);
      linear_loss(w.state, some_weights(1), 1.0).backward();
      const MonotonicTime begin = MonotonicTime::now();
      ASSERT_TRUE(w.reducer.finish_step());
      const double whole = to_seconds(MonotonicTime::now() - begin);
      const double waited = sum_of_pairs(w.reducer.take_waits());
      const int collectives = compressed ? 4 : 3; // the sync scalars travel on their own
      EXPECT_GE(waited, collectives * to_seconds(answer));
      EXPECT_LE(waited, whole);
    }
    EXPECT_EQ(w.reducer.take_waits().marks(), 0u) << "taken once";
  }
  World alone(at::kFloat);
  alone.reducer.begin_step(1);
  alone.reducer.begin_micro_step(true);
  linear_loss(alone.state, some_weights(1), 1.0).backward();
  ASSERT_TRUE(alone.reducer.finish_step());
  EXPECT_EQ(alone.reducer.take_waits().marks(), 0u) << "nobody to wait for";
}

// With shards: three buckets to shard, what all agree on, then the weights; every wait for them
// counts, and nothing else.
TEST(GradientReducer, WithSharesEveryWaitOfAStepIsExposedCommunication) {
  auto given = std::make_unique<ScriptedPeer>();
  ScriptedPeer& peer = *given;
  World w(at::kBFloat16, {}, std::move(given), 16, PrecisionMode::kMaster, {0, 2});
  StateGatherer gatherer(w.state, *w.collectives);
  peer.answer_takes = 20ms;
  w.reducer.begin_step(1);
  w.reducer.begin_micro_step(true);
  linear_loss(w.state, some_weights(1), 1.0).backward();
  ASSERT_TRUE(w.reducer.finish_step());
  EXPECT_THAT(peer.notes,
              ::testing::ElementsAre("scatter start 0", "scatter start 1", "scatter start 2",
                                     "scatter wait 0", "scatter wait 1", "scatter wait 2",
                                     "start 0", "wait 0"));
  peer.notes.clear();
  runtime::Stopwatch waits = w.reducer.take_waits();
  const double before = sum_of_pairs(waits);
  EXPECT_GE(before, 4 * 0.020);
  ASSERT_TRUE(gatherer.weights(1, waits));
  EXPECT_THAT(peer.notes,
              ::testing::ElementsAre("gather start 0", "gather start 1", "gather start 2",
                                     "gather wait 0", "gather wait 1", "gather wait 2"));
  EXPECT_GE(sum_of_pairs(waits) - before, 3 * 0.020);
  EXPECT_EQ(waits.marks(), 6u) << "three pairs: the update between them is work";
  EXPECT_EQ(peer.types.back(), at::kBFloat16) << "weights travel as the model reads them";
}

// Two ranks with half the batch each end where one rank with all of it ends, whether each of them
// updates everything or a shard.
void expect_two_ranks_equal_one(at::ScalarType type) {
  const double scale = type == at::kFloat ? 1 : 1e4; // of tolerances: BF16 gradients and weights
  World alone(type);
  Optimizer alone_optimizer(alone.state, section());
  std::vector<double> norms;
  for (int step = 1; step <= 5; ++step) {
    alone.reducer.begin_step(uint64_t(step));
    for (int part = 0; part < 2; ++part) {
      alone.reducer.begin_micro_step(part == 1);
      linear_loss(alone.state, some_weights(unsigned(10 * step + part)), 0.5).backward();
    }
    ASSERT_TRUE(alone.reducer.finish_step());
    norms.push_back(alone_optimizer.step(1e-2, at::ones({})).item<double>());
  }
  const auto parameters = [](const FlatState& state, const at::Tensor& flat) {
    std::vector<at::Tensor> each;
    for (size_t i = 0; i < state.parameter_count(); ++i)
      each.push_back(state.slice(flat, i).flatten());
    return at::cat(each);
  };
  for (const bool shards : {false, true})
    for (const std::string compress : {"off", "bf16", "fp16"}) {
      SCOPED_TRACE(testing::Message() << "shards " << shards << ", on the wire " << compress);
      const test::TemporaryFolder place;
      struct Result {
        at::Tensor masters, first, second;
      };
      std::vector<Result> results(2);
      std::mutex seed_mutex; // at::manual_seed is the process's, and the ranks here are threads
      std::vector<std::thread> ranks;
      for (Rank r = 0; r < 2; ++r)
        ranks.emplace_back([&, r] {
          auto collectives = comm::make_cpu_collectives(r, 2, {place.path(), -1, 60s}, 60s);
          ASSERT_TRUE(collectives);
          ReducerOptions options;
          if (compress == "bf16") options.compress = at::kBFloat16;
          if (compress == "fp16") options.compress = at::kHalf;
          std::unique_ptr<World> w;
          {
            const std::lock_guard lock(seed_mutex);
            const Shard shard = shards ? Shard{size_t(r), 2} : Shard{};
            w = std::make_unique<World>(type, options, std::move(*collectives), 16,
                                        PrecisionMode::kMaster, shard);
          }
          EXPECT_EQ(w->state.plan().buckets.size(), 3u);
          Optimizer optimizer(w->state, section());
          StateGatherer gatherer(w->state, *w->collectives);
          EXPECT_EQ(gatherer.needed(), shards);
          for (int step = 1; step <= 5; ++step) {
            std::vector<at::Tensor> weights;
            {
              const std::lock_guard lock(seed_mutex);
              weights = some_weights(unsigned(10 * step + r));
            }
            w->reducer.begin_step(uint64_t(step));
            w->reducer.begin_micro_step(true);
            linear_loss(w->state, weights, 0.5).backward();
            w->state.sync_scalars().fill_(r + 1.0);
            ASSERT_TRUE(w->reducer.finish_step());
            EXPECT_EQ(w->state.sync_scalars()[3].item<float>(), 3.0f)
                << "the sync scalars are summed too";
            const double norm = optimizer.step(1e-2, at::ones({})).item<double>();
            EXPECT_NEAR(norm, norms[size_t(step - 1)],
                        (compress == "off" ? 1e-6 * scale : 1e-2) * norm);
            if (!shards) continue;
            runtime::Stopwatch waits = w->reducer.take_waits();
            const size_t marks = waits.marks();
            ASSERT_TRUE(gatherer.weights(uint64_t(step), waits));
            EXPECT_EQ(waits.marks(), marks + 2);
          }
          if (shards) {
            ASSERT_TRUE(gatherer.masters_and_moments(5));
          }
          const FlatState& state = w->state;
          results[size_t(r)] = {parameters(state, state.masters),
                                parameters(state, state.first_moments),
                                parameters(state, state.second_moments)};
        });
      for (auto& t : ranks)
        t.join();
      for (const auto member : {&Result::masters, &Result::first, &Result::second})
        EXPECT_TRUE(at::equal(results[0].*member, results[1].*member))
            << "all ranks have the same bits";
      const double relative = compress == "off" ? 1e-6 * scale : 2e-2;
      const double absolute = compress == "off" ? 1e-7 * scale : 1e-3;
      const auto expect_close = [&](const at::Tensor& found, const at::Tensor& flat) {
        EXPECT_TRUE(at::allclose(found, parameters(alone.state, flat), relative, absolute));
      };
      expect_close(results[0].masters, alone.state.masters);
      expect_close(results[0].first, alone.state.first_moments);
      expect_close(results[0].second, alone.state.second_moments);
    }
}

TEST(GradientReducer, RanksTogetherEqualOneRank) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    expect_two_ranks_equal_one(type);
}

// A rank touches what is its own and nothing else, in every mode, and together they do what one
// does: also where a shard ends within a parameter, and where the weights are copies of masters.
TEST_P(EveryMode, SharesTogetherUpdateLikeOne) {
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
    // Into the first world, as the gatherer does it.
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
      // Random bits follow the place in the flat buffer, which padding moves.
      const bool rounded =
          GetParam() == PrecisionMode::kStochasticRounding && member == &FlatState::masters;
      EXPECT_TRUE(
          at::allclose(found.to(at::kFloat), wanted.to(at::kFloat), rounded ? 8e-3 : 1e-6, 1e-7))
          << "parameter " << i;
    }
}

void train_steps(World& w, Optimizer& optimizer, int from, int to) {
  for (int step = from; step <= to; ++step) {
    w.reducer.begin_step(uint64_t(step));
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, some_weights(unsigned(step)), 1.0).backward();
    ASSERT_TRUE(w.reducer.finish_step());
    optimizer.step(1e-2, at::ones({}));
  }
}

// Into a state of another bucket size, and on from there, as if nothing had happened.
TEST_P(EveryMode, StateRoundTripsBitForBit) {
  std::string folder = (fs::temp_directory_path() / "nsa-state-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  World w(at::kBFloat16, {}, nullptr, 16, GetParam());
  Optimizer optimizer(w.state, section());
  train_steps(w, optimizer, 1, 3);
  static const auto runtime = runtime::make_cpu_runtime({}); // a process has one
  SnapshotMaker maker(w.state, **runtime,
                      (*runtime)->allocate_host(SnapshotMaker::bytes_of(w.state)));
  for (const auto& file : maker.copy({.non_finite_streak = 4}))
    ASSERT_TRUE(
        checkpoint::write_safetensors(fs::path(folder) / file.name, file.tensors, file.metadata));
  World other(at::kBFloat16, {}, nullptr, 1 << 20, GetParam()); // one bucket instead of three
  auto counters = load_state(folder, other.state);
  ASSERT_TRUE(counters) << counters.error().what;
  EXPECT_EQ(counters->non_finite_streak, 4);
  EXPECT_EQ(other.state.updates.item<float>(), 3.0f);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(w.state.tensor(i), other.state.tensor(i)));
    for (auto member : {&FlatState::masters, &FlatState::first_moments, &FlatState::second_moments})
      EXPECT_TRUE(
          at::equal(w.state.slice(w.state.*member, i), other.state.slice(other.state.*member, i)));
  }
  Optimizer other_optimizer(other.state, section());
  train_steps(w, optimizer, 4, 6);
  train_steps(other, other_optimizer, 4, 6);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(
        at::equal(w.state.slice(w.state.masters, i), other.state.slice(other.state.masters, i)))
        << "resumed, it goes on alike";

  // Another mode reads it with one rounding, to the nearest.
  for (const auto mode : {PrecisionMode::kMaster, PrecisionMode::kStochasticRounding}) {
    World changed(at::kBFloat16, {}, nullptr, 16, mode);
    ASSERT_TRUE(load_state(folder, changed.state));
    World same(at::kBFloat16, {}, nullptr, 16, GetParam());
    ASSERT_TRUE(load_state(folder, same.state));
    EXPECT_TRUE(at::equal(changed.state.tensor(0), same.state.tensor(0)));
  }

  // Without initial values everything comes from the checkpoint, or it is refused.
  std::vector<Parameter> undrawn = make_parameters(at::kBFloat16);
  for (Parameter& parameter : undrawn) {
    parameter.initial.reset();
    parameter.tensor.data().fill_(NAN);
  }
  FlatState loaded(undrawn, 16, 4, GetParam());
  EXPECT_EQ(loaded.masters.abs().max().item<float>(), 0.0f);
  ASSERT_TRUE(load_state(folder, loaded));
  World whole(at::kBFloat16, {}, nullptr, 16, GetParam());
  ASSERT_TRUE(load_state(folder, whole.state));
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(loaded.tensor(i), whole.state.tensor(i)));
  EXPECT_TRUE(at::equal(loaded.masters, whole.state.masters));
  undrawn[1].name = "another";
  FlatState lacking(undrawn, 16, 4, GetParam());
  EXPECT_FALSE(load_state(folder, lacking)) << "a parameter that the checkpoint does not have";
  fs::remove(fs::path(folder) / "optimizer.safetensors");
  EXPECT_FALSE(load_state(folder, other.state));
  fs::remove_all(folder);
}

} // namespace
} // namespace nsa::train
