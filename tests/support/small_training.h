// Trains a small model for a few steps with the worker's own parts, either launched or recorded as
// graphs. The outcome holds what tests compare between two ways of training.
#pragma once

#include "worker/data/batch_builder.h"
#include "worker/model/model_loss.h"
#include "worker/step/train_step.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace nsa::test {

struct SmallTraining {
  model::ModelConfig config;
  at::ScalarType type = at::kFloat;
  train::PrecisionMode mode = train::PrecisionMode::kMaster;
  train::ReducerOptions options = {};
  size_t bucket_bytes = 4096;
  bool shards = false; // each rank updates a shard of the parameters
  int64_t accumulate = 1, rows = 2, sequence = 72;
  int steps = 6;
  int poisoned_step = 0;             // the step whose loss is NaN; 0: none
  int wider_step = 0;                // the step from which on a batch has one more row; 0: none
  uint64_t layer_interval_steps = 1; // 0: only the gates' figures of layers
  // Documents begin at this token, and every step has the same tokens. For launched steps only.
  std::optional<int64_t> separator = std::nullopt;
};

struct SmallOutcome {
  std::vector<double> losses, norms;                 // one of each step
  std::vector<std::map<std::string, double>> layers; // figures of layers of each step
  at::Tensor masters;                                // on the CPU
  size_t graphs = 0;
};

// Tokens differ between steps, micro-steps and ranks. With a separator they do not differ between
// steps.
inline std::shared_ptr<const data::Batch> small_batch(const SmallTraining& training,
                                                      runtime::Runtime& runtime, int step,
                                                      int64_t micro, Rank rank) {
  const int64_t rows =
      training.rows + (training.wider_step > 0 && step >= training.wider_step ? 1 : 0);
  auto batch = std::make_shared<data::Batch>(data::make_batch(
      rows, training.sequence, [&](size_t bytes) { return runtime.allocate_host(bytes); }));
  batch->rows = rows;
  auto* tokens = reinterpret_cast<int64_t*>(batch->memory.get());
  const int drawn = training.separator ? 1 : step;
  uint64_t state = uint64_t(drawn) * 1000 + uint64_t(micro) * 10 + uint64_t(rank) + 1;
  for (size_t t = 0; t < batch->inputs.size() + batch->targets.size(); ++t) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    tokens[t] = int64_t((state >> 33) % uint64_t(training.config.vocabulary));
  }
  return batch;
}

// What a test does or records during the training. Any member may be empty.
struct SmallNotes : train::StepHook {
  std::function<void(int step, int64_t micro)> at_backward;
  // Both run before the step's results are read.
  std::function<void(int step)> step_begins, step_enqueued;
  int poisoned_step = 0;

  void enter(progress::Phase phase, uint64_t step, uint64_t micro) override {
    if (phase == progress::Phase::kBackward && at_backward) at_backward(int(step), int64_t(micro));
  }
  bool poisons(uint64_t step) override { return int(step) == poisoned_step; }
};

// Returns the measured figures by name. The norms of the groups are combined into the norm of the
// whole gradient.
inline std::map<std::string, double> figures_of_layers(const train::StepResult& result) {
  std::map<std::string, double> figures;
  double squares = 0;
  for (const auto& [name, value] : result.layers) {
    if (name.starts_with("gradient_norms/")) squares += value * value;
    if (std::isfinite(value)) figures[std::string(name)] = value;
  }
  if (squares > 0 && std::isfinite(squares)) {
    EXPECT_NEAR(std::sqrt(squares), result.gradient_norm, 1e-5 * result.gradient_norm);
  }
  return figures;
}

// Trains one rank. `recorded` asks for graphs, which are used if the runtime supports them.
inline SmallOutcome run_small(const SmallTraining& training, bool recorded,
                              runtime::Runtime& runtime, comm::Collectives& collectives,
                              SmallNotes notes = {}) {
  model::LanguageModel model(training.config, runtime.device(), training.type, 1);
  spec::ParallelSection parallel;
  parallel.shard_update = training.shards;
  train::FlatState state(train::parameters_of(model), training.bucket_bytes, train::kSyncScalars,
                         training.mode,
                         train::shard_of_rank(parallel, collectives.rank(), collectives.world()));
  train::PhaseClock clock(
      std::move(*progress::Page::create(collectives.rank(), collectives.world())));
  spec::TrainSection section;
  section.accumulate = training.accumulate;
  notes.poisoned_step = training.poisoned_step;
  train::TrainStep::Parts parts{runtime, collectives, clock, state,
                                train::make_loss(model, runtime.device(), training.separator)};
  if (recorded) parts.staged = train::make_staged_loss(model, runtime.device());
  parts.gates = train::gates_of(model);
  parts.selection = train::selection_of(model);
  parts.layer_interval_steps = training.layer_interval_steps;
  parts.hooks = {&notes};
  train::TrainStep train_step(parts, section, training.options);
  SmallOutcome outcome;
  for (int step = 1; step <= training.steps; ++step) {
    std::deque<std::shared_ptr<const data::Batch>> batches;
    for (int64_t m = 0; m < training.accumulate; ++m)
      batches.push_back(small_batch(training, runtime, step, m, collectives.rank()));
    if (notes.step_begins) notes.step_begins(step);
    const train::TrainStep::Request request{uint64_t(step), 0, 1e-2 / step, true};
    EXPECT_TRUE(train_step.enqueue(request, [&] {
      const auto batch = batches.front();
      batches.pop_front();
      return batch;
    }));
    if (notes.step_enqueued) notes.step_enqueued(step);
    const train::StepResult result = train_step.take();
    outcome.norms.push_back(result.gradient_norm);
    outcome.losses.push_back(result.loss());
    outcome.layers.push_back(figures_of_layers(result));
  }
  EXPECT_TRUE(train_step.gather_state(uint64_t(training.steps)));
  runtime.synchronize();
  outcome.masters = state.masters.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  outcome.graphs = train_step.graphs();
  return outcome;
}

// Expects equality of every bit.
inline void expect_equal(const SmallOutcome& one, const SmallOutcome& other) {
  ASSERT_EQ(one.losses.size(), other.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1));
    EXPECT_EQ(std::isnan(one.losses[i]), std::isnan(other.losses[i]));
    if (std::isnan(one.losses[i])) continue;
    EXPECT_EQ(other.losses[i], one.losses[i]);
    EXPECT_EQ(other.norms[i], one.norms[i]);
    EXPECT_EQ(other.layers[i], one.layers[i]);
  }
  EXPECT_TRUE(at::equal(other.masters, one.masters));
}

} // namespace nsa::test
