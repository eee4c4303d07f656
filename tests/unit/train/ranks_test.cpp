// n ranks with parts of a global batch against one rank with all of it: the whole model, its
// gradients, losses and weights, through the real reducer and the real collectives.
#include "nsa_model/model/language_model.h"
#include "tests/support/bound_socket.h"
#include "worker/train/gradient_reducer.h"
#include "worker/train/optimizer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cmath>
#include <thread>

namespace nsa::train {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kVocabulary = 61, kSequence = 72, kGlobalBatch = 8, kMicroBatch = 2;
constexpr int kSteps = 5;

model::ModelConfig small_model() {
  model::ModelConfig c;
  c.vocabulary = kVocabulary;
  c.dimension = 24;
  c.layers = 2;
  c.heads = 4;
  c.head_dimension = 8;
  c.mlp_ratio = 2;
  c.nsa.compression_block = 8;
  c.nsa.compression_stride = 4;
  c.nsa.selection_block = 8;
  c.nsa.selected_blocks = 4;
  c.nsa.window = 12;
  c.nsa.compression = model::Compression::kMlp;
  return c;
}

struct Way {
  int world = 1;
  at::ScalarType type = at::kFloat;
  ReducerOptions options = {};
  PrecisionMode mode = PrecisionMode::kMaster;
};

struct Outcome {
  at::Tensor first_gradient, masters; // flat, without padding
  std::vector<double> losses;
};

// One rank's training. The text is the same for all; rows are dealt to micro-steps, then to ranks.
Outcome train(const Way& way, const at::Tensor& text, comm::Collectives& collectives) {
  at::set_num_threads(1);
  const model::ModelConfig config = small_model();
  model::LanguageModel model(config, at::kCPU, way.type, 1);
  std::vector<Parameter> parameters;
  for (const model::NamedParameter& p : model.named_parameters())
    parameters.push_back({p.name, p.tensor, model.initial_value(p.name), p.weight_decay});
  FlatState state(std::move(parameters), 4096, 1, way.mode); // several buckets
  PhaseClock clock(std::move(*progress::Page::create(collectives.rank(), collectives.world())));
  GradientReducer reducer(state, collectives, clock, way.options);
  spec::TrainSection section;
  Optimizer optimizer(state, section);
  const auto flat = [&](const at::Tensor& buffer) {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < state.parameter_count(); ++i)
      parts.push_back(state.slice(buffer, i).detach().flatten().to(at::kDouble));
    return at::cat(parts);
  };
  Outcome outcome;
  const int64_t accumulate = kGlobalBatch / kMicroBatch / way.world;
  for (int step = 1; step <= kSteps; ++step) {
    reducer.begin_step(uint64_t(step));
    at::Tensor total = at::zeros({});
    for (int64_t m = 0; m < accumulate; ++m) {
      const int64_t row = (m * way.world + collectives.rank()) * kMicroBatch;
      const at::Tensor rows = text[step - 1].narrow(0, row, kMicroBatch);
      const at::Tensor loss =
          model.loss(rows.narrow(1, 0, kSequence), rows.narrow(1, 1, kSequence)) /
          double(accumulate * way.world);
      reducer.begin_micro_step(m + 1 == accumulate);
      loss.backward();
      reducer.end_micro_step();
      total.add_(loss.detach());
    }
    state.tail()[0].copy_(total);
    EXPECT_TRUE(reducer.finish_step());
    if (step == 1) outcome.first_gradient = flat(state.gradients);
    outcome.losses.push_back(state.tail()[0].item<double>());
    optimizer.step(1e-3, state.tail()[0]);
  }
  outcome.masters = flat(state.masters);
  return outcome;
}

Outcome run(const Way& way) {
  at::manual_seed(3);
  const at::Tensor text =
      at::randint(kVocabulary, {kSteps, kGlobalBatch, kSequence + 1}, at::kLong);
  if (way.world == 1) return train(way, text, *comm::make_single_rank_collectives());
  const auto [fd, port] = test::bound_socket();
  std::vector<Outcome> outcomes(static_cast<size_t>(way.world));
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < way.world; ++r)
    ranks.emplace_back([&, r, fd = fd, port = port] {
      auto collectives =
          comm::make_cpu_collectives(r, way.world, {port, r == 0 ? fd : -1, 20s}, 20s);
      ASSERT_TRUE(collectives);
      outcomes[size_t(r)] = train(way, text, **collectives);
    });
  for (auto& t : ranks)
    t.join();
  for (const Outcome& other : outcomes)
    EXPECT_TRUE(at::equal(other.masters, outcomes[0].masters)) << "all ranks have the same bits";
  return outcomes[0];
}

double relative(const at::Tensor& found, const at::Tensor& exact) {
  return ((found - exact).norm() / exact.norm()).item<double>();
}

TEST(Ranks, InFp32AreOneRankToAMillionth) {
  const Outcome one = run({});
  for (const int world : {2, 4}) {
    const Outcome many = run({.world = world});
    EXPECT_LE(relative(many.first_gradient, one.first_gradient), 1e-6) << world;
    EXPECT_LE(relative(many.masters, one.masters), 1e-6) << world;
    for (size_t step = 0; step < one.losses.size(); ++step)
      EXPECT_NEAR(many.losses[step], one.losses[step], 1e-6 * one.losses[step])
          << world << " ranks, step " << step + 1;
  }
}

// Against FP32, several ranks may be off by no more than one and a half times what one rank is,
// with FP32 or BF16 on the wire.
TEST(Ranks, InBf16AreNoWorseThanOneRank) {
  const Outcome exact = run({});
  for (const PrecisionMode mode : {PrecisionMode::kMaster, PrecisionMode::kStochasticRounding}) {
    const Outcome one = run({.type = at::kBFloat16, .mode = mode});
    const double gradient = relative(one.first_gradient, exact.first_gradient),
                 weights = relative(one.masters, exact.masters);
    EXPECT_GT(gradient, 1e-4) << "BF16 was computed in";
    for (const int world : {2, 4})
      for (const bool compress : {false, true}) {
        Way way{.world = world, .type = at::kBFloat16, .mode = mode};
        if (compress) way.options.compress = at::kBFloat16;
        const Outcome many = run(way);
        EXPECT_LE(relative(many.first_gradient, exact.first_gradient), 1.5 * gradient)
            << world << (compress ? " compressed" : "");
        EXPECT_LE(relative(many.masters, exact.masters), 1.5 * weights)
            << world << (compress ? " compressed" : "");
      }
  }
}

} // namespace
} // namespace nsa::train
