// Training of one rank by the worker's TrainStep, one step at a time.
#pragma once

#include "bench/model/batches.h"
#include "bench/model/failure.h"
#include "bench/model/options.h"
#include "bench/model/stopwatch.h"
#include "worker/model/kernel_setup.h"
#include "worker/model/model_loss.h"
#include "worker/model/shared_context.h"
#include "worker/rules/precision.h"
#include "worker/step/train_step.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::bench {

// Records four marks a step: its begin, the end of the forward pass, the begin and the end of the
// optimizer. It also carries this rank's request to stop.
class StepMarks : public train::StepHook {
public:
  Stopwatch* watch = nullptr; // nullptr: times are not recorded
  bool wants_stop = false;
  void enter(progress::Phase phase, uint64_t step, uint64_t micro_step) override;
  void add_requests(train::StepRequests& requests) override {
    requests.stop = requests.stop || wants_stop;
  }
};

class Training {
public:
  // Without `dataset`, tokens are random.
  Training(const spec::RunSpec& spec, runtime::Runtime& runtime, comm::Collectives& collectives,
           Layers layers, std::shared_ptr<const dataset::Dataset> dataset);

  // Whether "auto" chooses the same attention kernels for this run, which has another length.
  bool serves(const spec::RunSpec& spec) const;
  // After this call the parameters have hooks and live in flat buffers, and this rank updates its
  // shard of them.
  void prepare();
  void load(const std::string& checkpoint);
  // Continues with batches of another length, or with or without graphs. The model stays the same.
  void use(const spec::RunSpec& spec, bool graphs);

  // Enqueues a step and waits for the step before last.
  void step(Stopwatch& watch);
  void finish();
  // Asks all ranks to stop; every rank sees the request after the same step.
  void ask_to_stop() { marks_.wants_stop = true; }
  bool stopped() const { return stopped_; }
  // Results of the steps since use() that have completed.
  const std::vector<train::StepResult>& results() const { return results_; }

  size_t graphs() const { return step_->graphs(); }
  model::LanguageModel& model() { return model_; }
  std::string computes_in() const { return precision_.name(); }
  // "fused hopper", "aten cudnn"; one for each branch if they differ.
  std::string kernels_in_effect() const;
  // The attention inputs of a layer for a batch of held-out text (random tokens without a data
  // set), and the blocks that it selects.
  ops::AttentionInputs attention_inputs(int64_t layer);

private:
  train::PlannedModel planned(const spec::RunSpec& spec) const;
  void take(size_t leave);

  spec::RunSpec spec_;
  runtime::Runtime& runtime_;
  comm::Collectives& collectives_;
  Layers layers_;
  train::Precision precision_;
  model::LanguageModel model_;
  train::PhaseClock clock_;
  std::shared_ptr<const dataset::Dataset> dataset_;
  train::BatchLoss loss_;
  train::LayerFigures gates_, selection_;
  std::optional<train::FlatState> state_;
  StepMarks marks_;
  std::optional<train::TrainStep> step_;
  std::optional<Batches> batches_;
  uint64_t count_ = 0; // steps that have begun
  bool stopped_ = false;
  std::vector<train::StepResult> results_;
};

} // namespace nsa::bench
