// Compares the optimizer's kernels on a GPU with LibTorch's operations on the same buffers.
#include "nsa_model/ops/update.h"
#include "tests/gpu/gpu_host.h"
#include "worker/comm/collectives.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/stochastic_rounding.h"
#include "worker/step/gradient_reducer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace nsa::train {
namespace {

using at::Tensor;

class Updates : public testing::Test {
protected:
  void SetUp() override {
    if (!fused_missing().empty()) GTEST_SKIP() << fused_missing();
    at::manual_seed(17);
  }
};

at::TensorOptions cuda(at::ScalarType type) {
  return at::TensorOptions().device(at::kCUDA).dtype(type);
}

const std::vector<std::vector<int64_t>> kShapes = {{700, 768}, {768}, {33, 65}, {5}, {3, 1000}};
constexpr size_t kPlain = 1; // this one has no weight decay

FlatState make_state(at::ScalarType type, PrecisionMode mode) {
  at::manual_seed(3);
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < kShapes.size(); ++i)
    parameters.push_back({"p" + std::to_string(i),
                          at::empty(kShapes[i], cuda(type)).set_requires_grad(true),
                          at::randn(kShapes[i]).mul_(0.1), i != kPlain, std::to_string(i / 2)});
  return FlatState(std::move(parameters), 1 << 20, 4, mode);
}

spec::TrainSection section(double clip) {
  spec::TrainSection train;
  train.gradient_clip = clip;
  train.weight_decay = 0.1;
  train.seed = 9;
  return train;
}

void draw_gradients(FlatState& state, double deviation) {
  for (size_t i = 0; i < kShapes.size(); ++i)
    state.slice(state.gradients, i).normal_(0, deviation);
}

double relative(const Tensor& value, const Tensor& wanted) {
  const Tensor exact = wanted.to(at::kDouble);
  return ((value.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

// The limit of ||value - wanted||. For a buffer in BF16 it is the error of one rounding.
double limit_of(const Tensor& buffer) {
  return buffer.scalar_type() == at::kBFloat16 ? 4e-3 : 2e-6;
}

struct Case {
  at::ScalarType type;
  PrecisionMode mode;
};
const Case kCases[] = {{at::kBFloat16, PrecisionMode::kMaster},
                       {at::kFloat, PrecisionMode::kMaster},
                       {at::kBFloat16, PrecisionMode::kStochasticRounding},
                       {at::kBFloat16, PrecisionMode::kPure}};

TEST_F(Updates, AreLibTorchsAdamW) {
  for (const Case& c : kCases)
    for (const double clip : {0.0, 1.0}) {
      FlatState ours = make_state(c.type, c.mode), theirs = make_state(c.type, c.mode);
      Optimizer one(ours, section(clip), true), other(theirs, section(clip), false);
      const Tensor loss = at::ones({}, cuda(at::kFloat));
      for (int step = 1; step <= 6; ++step) {
        at::manual_seed(uint64_t(step));
        draw_gradients(ours, step % 2 == 0 ? 1.0 : 1e-4); // alternately above and below the limit
        ours.sum_squares();
        // Including the sum of squares, which is stored after them.
        theirs.gradients.copy_(ours.gradients);
        // Each step begins with the same state, so rounding errors do not accumulate.
        for (auto member :
             {&FlatState::masters, &FlatState::first_moments, &FlatState::second_moments})
          (theirs.*member).copy_(ours.*member);
        const Tensor norm = one.step(1e-2, loss), wanted = other.step(1e-2, loss);
        EXPECT_LE(relative(norm, wanted), 1e-5);
        EXPECT_EQ(ours.updates.item<float>(), float(step));
        for (auto member :
             {&FlatState::masters, &FlatState::first_moments, &FlatState::second_moments})
          EXPECT_LE(relative(ours.*member, theirs.*member), limit_of(ours.*member))
              << "mode " << int(c.mode) << " step " << step;
        for (size_t i = 0; i < kShapes.size(); ++i)
          EXPECT_TRUE(at::equal(ours.tensor(i).detach(), ours.slice(ours.masters, i).to(c.type)))
              << "the model computes with what was left, parameter " << i;
      }
    }
}

TEST_F(Updates, DrawTheSameBitsForRoundingAtRandom) {
  FlatState ours = make_state(at::kBFloat16, PrecisionMode::kStochasticRounding);
  FlatState theirs = make_state(at::kBFloat16, PrecisionMode::kStochasticRounding);
  Optimizer one(ours, section(0), true), other(theirs, section(0), false);
  const Tensor loss = at::ones({}, cuda(at::kFloat));
  one.step(1e-2, loss); // with zero gradients only weight decay acts: 1e-3 of each weight
  other.step(1e-2, loss);
  const Tensor differ = ours.masters.ne(theirs.masters).to(at::kDouble).mean();
  EXPECT_LE(differ.item<double>(), 1e-3) << "beyond what the last bit before rounding explains";
  EXPECT_GT(ours.masters.ne(make_state(at::kBFloat16, PrecisionMode::kStochasticRounding).masters)
                .to(at::kDouble)
                .mean()
                .item<double>(),
            0.1);
}

TEST_F(Updates, LeaveEverythingWhereNormOrLossIsNotFinite) {
  for (const Case& c : kCases) {
    FlatState state = make_state(c.type, c.mode);
    Optimizer optimizer(state, section(1.0));
    draw_gradients(state, 1.0);
    state.sum_squares();
    const Tensor masters = state.masters.clone();
    const Tensor nan = at::full({}, NAN, cuda(at::kFloat)), one = at::ones_like(nan);
    EXPECT_TRUE(std::isfinite(optimizer.step(1e-2, nan).item<double>()));
    state.gradients[7].fill_(INFINITY);
    state.sum_squares();
    EXPECT_FALSE(std::isfinite(optimizer.step(1e-2, one).item<double>()));
    EXPECT_TRUE(at::equal(state.masters, masters));
    EXPECT_EQ(state.first_moments.abs().max().item<float>(), 0.0f);
    EXPECT_EQ(state.updates.item<float>(), 0.0f);
    draw_gradients(state, 1.0);
    state.sum_squares();
    optimizer.step(1e-2, one);
    EXPECT_FALSE(at::equal(state.masters, masters));
  }
}

// Groups like a model's layers, with the whole buffer and with three shards. The bits of the whole
// sum do not depend on the groups.
TEST_F(Updates, SumSquaresOfGroups) {
  for (const size_t shards : {size_t(1), size_t(3)}) {
    std::map<std::string, double> exact, found;
    for (size_t shard = 0; shard < shards; ++shard) {
      std::vector<Parameter> parameters;
      for (size_t i = 0; i < kShapes.size(); ++i)
        parameters.push_back({"p" + std::to_string(i),
                              at::empty(kShapes[i], cuda(at::kBFloat16)).set_requires_grad(true),
                              at::zeros(kShapes[i]), true, std::to_string(i / 2)});
      FlatState state(std::move(parameters), 1 << 20, 4, PrecisionMode::kMaster, {shard, shards});
      at::manual_seed(23);
      draw_gradients(state, 1.0);
      exact.clear();
      for (size_t i = 0; i < kShapes.size(); ++i)
        exact[std::to_string(i / 2)] +=
            state.slice(state.gradients, i).to(at::kDouble).square().sum().item<double>();
      state.sum_squares();
      const float alone = state.square_sum().item<float>();
      state.sum_squares(/*by_group=*/true);
      EXPECT_EQ(state.square_sum().item<float>(), alone);
      for (size_t g = 0; g < state.groups().size(); ++g)
        found[state.groups()[g]] += state.group_square_sums()[int64_t(g)].item<double>();
    }
    ASSERT_EQ(found.size(), 3u);
    for (const auto& [group, squares] : exact)
      EXPECT_NEAR(found.at(group), squares, 1e-5 * squares) << group << ", " << shards << " shards";
  }
}

// BF16 gradients that are read where they lie give the same bits as FP32 sums.
TEST_F(Updates, ReadGradientsInBf16AsInFp32) {
  for (const Case& c : kCases) {
    if (c.type != at::kBFloat16) continue;
    FlatState narrow = make_state(c.type, c.mode), wide = make_state(c.type, c.mode);
    narrow.keep_narrow_gradients(true);
    Optimizer one(narrow, section(1.0)), other(wide, section(1.0));
    const Tensor loss = at::ones({}, cuda(at::kFloat));
    for (int step = 1; step <= 4; ++step) {
      std::vector<Tensor> gradients;
      for (size_t i = 0; i < kShapes.size(); ++i) {
        gradients.push_back(at::randn(kShapes[i], cuda(at::kBFloat16)) * (step % 2 ? 1e-4 : 1.0));
        if (step == 3 && i == 1) gradients[i].zero_();
        wide.slice(wide.gradients, i).copy_(gradients[i]);
      }
      gradients[4] = gradients[4].t().contiguous().t(); // the kernel does not support it
      for (size_t i = 0; i < kShapes.size(); ++i) {
        const bool in_place = i < 2; // the others have odd sizes or another layout
        const Tensor readable = narrow.readable_gradient(i, gradients[i]);
        EXPECT_EQ(readable.is_same(gradients[i]), in_place) << i;
        gradients[i] = readable;
      }
      if (step == 3) gradients[1].reset(); // counts as zero
      narrow.set_narrow_gradients(gradients);
      for (FlatState* state : {&narrow, &wide})
        state->sum_squares(/*by_group=*/true);
      EXPECT_EQ(narrow.square_sum().item<float>(), wide.square_sum().item<float>());
      EXPECT_TRUE(at::equal(narrow.group_square_sums(), wide.group_square_sums()));
      const Tensor norm = one.step(1e-2, loss);
      EXPECT_TRUE(at::equal(norm, other.step(1e-2, loss)));
      for (auto member :
           {&FlatState::masters, &FlatState::first_moments, &FlatState::second_moments})
        EXPECT_TRUE(at::equal(narrow.*member, wide.*member))
            << "mode " << int(c.mode) << " step " << step;
    }
  }
}

// The same with backward passes. One parameter sometimes gets no gradient.
TEST_F(Updates, OneMicroStepLeavesTheSameBits) {
  FlatState narrow = make_state(at::kBFloat16, PrecisionMode::kMaster);
  FlatState wide = make_state(at::kBFloat16, PrecisionMode::kMaster);
  const auto collectives = comm::make_single_rank_collectives();
  GradientReducer one(narrow, *collectives, {.find_unused = true, .keep_narrow = true});
  GradientReducer other(wide, *collectives, {.find_unused = true});
  EXPECT_TRUE(narrow.keeps_narrow_gradients());
  EXPECT_FALSE(wide.keeps_narrow_gradients());
  Optimizer of_narrow(narrow, section(1.0)), of_wide(wide, section(1.0));
  const auto run = [&](FlatState& state, GradientReducer& reducer, Optimizer& optimizer,
                       uint64_t step) {
    at::manual_seed(step);
    reducer.begin_step(step);
    reducer.begin_micro_step(true);
    Tensor loss = at::zeros({}, cuda(at::kFloat));
    for (size_t i = step % 2; i < kShapes.size(); ++i)
      loss = loss + (state.tensor(i) * at::randn(kShapes[i], cuda(at::kBFloat16))).sum();
    loss.backward();
    reducer.end_micro_step();
    EXPECT_TRUE(reducer.finish_step());
    return optimizer.step(1e-2, loss.detach());
  };
  for (uint64_t step = 1; step <= 4; ++step) {
    const Tensor norm = run(narrow, one, of_narrow, step);
    EXPECT_TRUE(at::equal(norm, run(wide, other, of_wide, step)));
    EXPECT_TRUE(at::equal(narrow.masters, wide.masters)) << step;
    EXPECT_TRUE(at::equal(narrow.second_moments, wide.second_moments)) << step;
  }
}

TEST_F(Updates, AddGradientsExactly) {
  const Tensor sums = at::full({1 << 22}, NAN, cuda(at::kFloat)); // old contents must not be read
  std::vector<Tensor> gradients;
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (int i = 0; i < 150; ++i) { // more than one launch can take
    const int64_t count = i % 7 == 0 ? 1 + i : 8192 * (i % 3) + 16 * i + 5;
    gradients.push_back(at::randn({count}, cuda(at::kBFloat16)));
    offsets.push_back(end);
    end = (end + count + 15) / 16 * 16;
  }
  ASSERT_LE(end, sums.numel());
  gradients[3] = gradients[3].to(at::kFloat);                  // the kernel does not support it
  gradients[4] = at::randn({40, 30}, cuda(at::kBFloat16)).t(); // nor this one
  offsets[4] = end;
  ops::add_gradients_(sums, gradients, offsets, true);
  ops::add_gradients_(sums, gradients, offsets, false);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor found = sums.narrow(0, offsets[i], gradients[i].numel());
    EXPECT_TRUE(at::equal(found, gradients[i].to(at::kFloat).mul(2).contiguous().flatten())) << i;
    if (i + 1 < gradients.size() && i != 4 && offsets[i] + gradients[i].numel() < offsets[i + 1]) {
      EXPECT_TRUE(sums[offsets[i] + gradients[i].numel()].isnan().item<bool>()) << "written past";
    }
  }
}

} // namespace
} // namespace nsa::train
