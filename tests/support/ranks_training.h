// One rank's training of a whole model on its part of a global batch, through the real reducer and
// the collectives it is given: what n ranks are compared with one by.
#pragma once

#include "nsa_model/model/language_model.h"
#include "worker/optimizer/optimizer.h"
#include "worker/step/gradient_reducer.h"
#include "worker/step/state_gatherer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace nsa::test {

struct RanksBatch { // sizes in sequences, length in tokens
  int64_t global = 8, micro = 2, length = 72;
  int steps = 5;
};

struct RanksWay {
  model::ModelConfig model;
  RanksBatch batch;
  at::ScalarType type = at::kFloat;
  train::ReducerOptions options = {};
  train::PrecisionMode mode = train::PrecisionMode::kMaster;
  size_t bucket_bytes = 4096; // several buckets
  bool shares = false;        // each rank updates a share of the parameters
  double epsilon = 1e-8;      // AdamW's
};

struct RanksOutcome {
  at::Tensor first_gradient, masters; // FP64 on the CPU, flat, without padding
  std::vector<double> losses;
};

// Text of all steps, the same in every process: int64 [steps, global, length + 1] on the CPU.
inline at::Tensor ranks_text(const RanksWay& way) {
  at::manual_seed(3);
  return at::randint(way.model.vocabulary,
                     {way.batch.steps, way.batch.global, way.batch.length + 1}, at::kLong);
}

// Rows of the text are dealt to micro-steps, then to ranks.
inline RanksOutcome train_rank(const RanksWay& way, const at::Tensor& text, at::Device device,
                               comm::Collectives& collectives) {
  using namespace train;
  model::LanguageModel model(way.model, device, way.type, 1);
  std::vector<Parameter> parameters;
  for (const model::NamedParameter& p : model.named_parameters())
    parameters.push_back({p.name, p.tensor, model.initial_value(p.name), p.weight_decay});
  const int world = collectives.world();
  const Share share = way.shares ? Share{size_t(collectives.rank()), size_t(world)} : Share{};
  FlatState state(std::move(parameters), way.bucket_bytes, 1, way.mode, share);
  PhaseClock clock(std::move(*progress::Page::create(collectives.rank(), collectives.world())));
  GradientReducer reducer(state, collectives, clock, way.options);
  spec::TrainSection section;
  section.epsilon = way.epsilon;
  Optimizer optimizer(state, section);
  StateGatherer gatherer(state, collectives, clock);
  const auto flat = [&](const at::Tensor& buffer) {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < state.parameter_count(); ++i)
      parts.push_back(state.slice(buffer, i).detach().flatten().to(at::kCPU, at::kDouble));
    return at::cat(parts);
  };
  RanksOutcome outcome;
  const int64_t accumulate = way.batch.global / way.batch.micro / world;
  for (int step = 1; step <= way.batch.steps; ++step) {
    reducer.begin_step(uint64_t(step));
    at::Tensor total = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device));
    for (int64_t m = 0; m < accumulate; ++m) {
      const int64_t row = (m * world + collectives.rank()) * way.batch.micro;
      const at::Tensor rows = text[step - 1].narrow(0, row, way.batch.micro).to(device);
      const at::Tensor loss =
          model.loss(rows.narrow(1, 0, way.batch.length), rows.narrow(1, 1, way.batch.length)) /
          double(accumulate * world);
      reducer.begin_micro_step(m + 1 == accumulate);
      loss.backward();
      reducer.end_micro_step();
      total.add_(loss.detach());
    }
    state.tail()[0].copy_(total);
    EXPECT_TRUE(reducer.finish_step());
    if (step == 1) {
      if (gatherer.needed())
        for (size_t b = 0; b < state.plan().buckets.size(); ++b) {
          const at::Tensor of = state.stretch(state.gradients, state.plan().parameters_of(b));
          EXPECT_TRUE(
              collectives.all_gather(of, {1, comm::Kind::kGradient, uint32_t(1000 + b)})->wait());
        }
      outcome.first_gradient = flat(state.gradients);
    }
    outcome.losses.push_back(state.tail()[0].item<double>());
    optimizer.step(1e-3, state.tail()[0]);
    runtime::Stopwatch waits = reducer.take_waits();
    if (gatherer.needed()) {
      EXPECT_TRUE(gatherer.weights(uint64_t(step), waits));
    }
  }
  if (gatherer.needed()) {
    EXPECT_TRUE(gatherer.masters_and_moments(uint64_t(way.batch.steps)));
  }
  outcome.masters = flat(state.masters);
  return outcome;
}

inline double relative_error(const at::Tensor& found, const at::Tensor& exact) {
  return ((found - exact).norm() / exact.norm()).item<double>();
}

} // namespace nsa::test
