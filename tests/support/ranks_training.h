// Trains one rank of a whole model on its part of a global batch, with TrainStep and the given
// collectives. Tests compare the training of n ranks with that of one rank.
#pragma once

#include "nsa_model/model/language_model.h"
#include "worker/step/train_step.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <functional>
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
  size_t bucket_bytes = 4096; // small, so there are several buckets
  bool shards = false;        // each rank updates a shard of the parameters
  double epsilon = 1e-8;      // of AdamW
};

struct RanksOutcome {
  at::Tensor first_gradient, masters; // FP64 on the CPU, flat, without padding
  std::vector<double> losses;
};

// Returns the text of all steps, the same in every process: int64 [steps, global, length + 1] on
// the CPU.
inline at::Tensor ranks_text(const RanksWay& way) {
  at::manual_seed(3);
  return at::randint(way.model.vocabulary,
                     {way.batch.steps, way.batch.global, way.batch.length + 1}, at::kLong);
}

// Calls `reduced` once: when the first step's gradients have been summed over all ranks.
struct AtFirstReduction : train::StepHook {
  std::function<void()> reduced;
  void enter(progress::Phase phase, uint64_t step, uint64_t) override {
    if (phase == progress::Phase::kOptimizer && step == 1) reduced();
  }
};

// Rows of the text are assigned to micro-steps first, and within each to ranks.
inline RanksOutcome train_rank(const RanksWay& way, const at::Tensor& text,
                               runtime::Runtime& runtime, comm::Collectives& collectives) {
  using namespace train;
  const at::Device device = runtime.device();
  model::LanguageModel model(way.model, device, way.type, 1);
  std::vector<Parameter> parameters;
  for (const model::NamedParameter& p : model.named_parameters())
    parameters.push_back({p.name, p.tensor, model.initial_value(p.name), p.weight_decay});
  spec::ParallelSection parallel;
  parallel.shard_update = way.shards;
  FlatState state(std::move(parameters), way.bucket_bytes, kSyncScalars, way.mode,
                  shard_of_rank(parallel, collectives.rank(), collectives.world()));
  PhaseClock clock(std::move(*progress::Page::create(collectives.rank(), collectives.world())));
  const auto flat = [&](const at::Tensor& buffer) {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < state.parameter_count(); ++i)
      parts.push_back(state.slice(buffer, i).detach().flatten().to(at::kCPU, at::kDouble));
    return at::cat(parts);
  };
  RanksOutcome outcome;
  AtFirstReduction first;
  first.reduced = [&] {
    if (state.shard().of > 1)
      for (size_t b = 0; b < state.plan().buckets.size(); ++b) {
        const at::Tensor of = state.range(state.gradients, state.plan().parameters_of(b));
        EXPECT_TRUE(
            collectives.all_gather(of, {1, comm::Kind::kGradient, uint32_t(1000 + b)})->wait());
      }
    outcome.first_gradient = flat(state.gradients);
  };
  spec::TrainSection section;
  section.epsilon = way.epsilon;
  section.accumulate = way.batch.global / way.batch.micro / collectives.world();
  // The loss takes its rows from the text. The batches are empty.
  int64_t step = 0, micro = 0;
  const auto loss = [&](const auto&) {
    const int64_t row = (micro++ * collectives.world() + collectives.rank()) * way.batch.micro;
    const at::Tensor rows = text[step - 1].narrow(0, row, way.batch.micro).to(device);
    return model.loss(rows.narrow(1, 0, way.batch.length), rows.narrow(1, 1, way.batch.length));
  };
  TrainStep::Parts parts{runtime, collectives, clock, state, loss};
  parts.hooks = {&first};
  TrainStep train_step(parts, section, way.options);
  auto nothing = std::make_shared<const data::Batch>();
  for (step = 1; step <= way.batch.steps; ++step) {
    micro = 0;
    EXPECT_TRUE(train_step.enqueue({uint64_t(step), 0, 1e-3, false}, [&] { return nothing; }));
    outcome.losses.push_back(train_step.take().loss());
  }
  EXPECT_TRUE(train_step.gather_state(uint64_t(way.batch.steps)));
  outcome.masters = flat(state.masters);
  return outcome;
}

inline double relative_error(const at::Tensor& found, const at::Tensor& exact) {
  return ((found - exact).norm() / exact.norm()).item<double>();
}

} // namespace nsa::test
