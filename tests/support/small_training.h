// A few steps of a small model through the worker's own parts, launched or recorded, with all that
// two ways of doing it are compared by.
#pragma once

#include "worker/data/batch_builder.h"
#include "worker/model/model_loss.h"
#include "worker/optimizer/optimizer.h"
#include "worker/step/micro_steps.h"
#include "worker/step/state_gatherer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <optional>

namespace nsa::test {

struct SmallTraining {
  model::ModelConfig config;
  at::ScalarType type = at::kFloat;
  train::PrecisionMode mode = train::PrecisionMode::kMaster;
  train::ReducerOptions options = {};
  size_t bucket_bytes = 4096;
  bool shares = false; // each rank updates a share of the parameters
  int64_t accumulate = 1, rows = 2, sequence = 72;
  int steps = 6;
  int poisoned_step = 0; // its loss is NaN; 0: none
  int wider_step = 0;    // from here on a row more; 0: never
  // Documents begin at it, and every step has the same tokens; launched only.
  std::optional<int64_t> separator = std::nullopt;
};

struct SmallOutcome {
  std::vector<double> losses, norms; // by step
  std::vector<at::Tensor> gates;     // by step, on the CPU; empty without gate statistics
  at::Tensor masters;                // on the CPU
  size_t graphs = 0;
};

// Tokens that differ by step, micro-step and rank (with documents, not by step).
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

// What a test does or notes on the way; any may be empty.
struct SmallNotes {
  std::function<void(int step, int64_t micro)> at_forward, at_backward;
  std::function<void(int step)> step_begins, step_enqueued; // not yet read
};

// One rank's training. `recorded`: as graphs, where the runtime can.
inline SmallOutcome run_small(const SmallTraining& training, bool recorded,
                              runtime::Runtime& runtime, comm::Collectives& collectives,
                              const SmallNotes& notes = {}) {
  const auto call = [](const auto& function, auto... arguments) {
    if (function) function(arguments...);
  };
  model::LanguageModel model(training.config, runtime.device(), training.type, 1);
  const train::Share share =
      training.shares ? train::Share{size_t(collectives.rank()), size_t(collectives.world())}
                      : train::Share{};
  train::FlatState state(train::parameters_of(model), training.bucket_bytes, 1, training.mode,
                         share);
  train::PhaseClock clock(
      std::move(*progress::Page::create(collectives.rank(), collectives.world())));
  train::GradientReducer reducer(state, collectives, clock, training.options);
  train::Optimizer optimizer(state, {});
  train::StateGatherer gatherer(state, collectives, clock);
  std::optional<train::StagedLoss> staged;
  if (recorded) staged = train::make_staged_loss(model, runtime.device());
  train::MicroSteps micro_steps({runtime, reducer, state.tail()[0],
                                 train::make_loss(model, runtime.device(), training.separator),
                                 staged},
                                1.0 / double(training.accumulate * collectives.world()));
  const train::GateMeans gates = train::gates_of(model);
  SmallOutcome outcome;
  for (int step = 1; step <= training.steps; ++step) {
    std::vector<std::shared_ptr<const data::Batch>> batches;
    for (int64_t m = 0; m < training.accumulate; ++m)
      batches.push_back(small_batch(training, runtime, step, m, collectives.rank()));
    call(notes.step_begins, step);
    reducer.begin_step(uint64_t(step));
    for (int64_t m = 0; m < training.accumulate; ++m) {
      call(notes.at_forward, step, m);
      micro_steps.run(batches[size_t(m)],
                      {.first = m == 0,
                       .last = m + 1 == training.accumulate,
                       .poisoned = step == training.poisoned_step && m == 0},
                      [&] { call(notes.at_backward, step, m); });
    }
    EXPECT_TRUE(reducer.finish_step());
    std::vector<at::Tensor> values{optimizer.step(1e-2 / step, state.tail()[0]).reshape({1}),
                                   state.tail()};
    if (gatherer.needed()) {
      runtime::Stopwatch waits = reducer.take_waits();
      EXPECT_TRUE(gatherer.weights(uint64_t(step), waits));
    }
    if (gates.take) values.push_back(gates.take());
    const auto reading = runtime.read_later(at::cat(values));
    call(notes.step_enqueued, step);
    const std::vector<double> read = reading->take();
    outcome.norms.push_back(read[0]);
    outcome.losses.push_back(read[1]);
    if (gates.take)
      outcome.gates.push_back(at::tensor(std::vector<double>(read.begin() + 2, read.end())));
  }
  if (gatherer.needed()) {
    EXPECT_TRUE(gatherer.masters_and_moments(uint64_t(training.steps)));
  }
  runtime.synchronize();
  outcome.masters = state.masters.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  outcome.graphs = micro_steps.graphs();
  return outcome;
}

// Bit for bit.
inline void expect_equal(const SmallOutcome& one, const SmallOutcome& other) {
  ASSERT_EQ(one.losses.size(), other.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1));
    EXPECT_EQ(std::isnan(one.losses[i]), std::isnan(other.losses[i]));
    if (std::isnan(one.losses[i])) continue;
    EXPECT_EQ(other.losses[i], one.losses[i]);
    EXPECT_EQ(other.norms[i], one.norms[i]);
    if (!one.gates.empty()) {
      EXPECT_TRUE(at::equal(other.gates[i], one.gates[i]));
    }
  }
  EXPECT_TRUE(at::equal(other.masters, one.masters));
}

} // namespace nsa::test
