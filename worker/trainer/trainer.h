// Trainer runs the training loop of one rank. It makes steps (TrainStep), and keeps as many of them
// in flight as the device allows. It calls its hooks with their results and between steps: metrics,
// evaluation, checkpoints. Stop and checkpoint requests are reduced together with the gradients, so
// that all ranks decide alike. It owns none of the parts that it is given. Training thread only.
#pragma once

#include "common/spec/run_spec.h"
#include "worker/data/evaluation.h"
#include "worker/data/loader.h"
#include "worker/rules/kernel_check.h"
#include "worker/rules/non_finite.h"
#include "worker/telemetry/metrics_sink.h"
#include "worker/trainer/checkpointer.h"
#include "worker/trainer/decoding_hook.h"
#include "worker/trainer/hooks.h"
#include "worker/trainer/metrics_hook.h"
#include "worker/trainer/start_up.h"

namespace nsa::train {

struct TrainerParts {
  const spec::RunSpec& spec;
  Rank rank = 0;
  std::filesystem::path run_folder;
  runtime::Runtime& runtime;
  comm::Collectives& collectives;
  link::Link& link;
  PhaseClock& clock;
  FlatState& state;
  BatchLoss loss;
  TokenLosses token_losses;         // for held-out text
  std::optional<StagedLoss> staged; // set: steps are captured as graphs (toggle cuda.graphs)
  bool graphs_or_nothing = false;   // cuda.graphs = "on": the run fails if graphs cannot be
                                    // captured
  data::Loader& loader;
  const data::EvaluationSet* evaluation = nullptr; // null: no held-out evaluation
  Checkpointer& checkpointer;
  std::vector<std::unique_ptr<MetricsSink>>& sinks; // rank 0 only
  StepHook* faults = nullptr;                       // null: no fault is injected
  LayerFigures gates;                               // may be empty
  StartUpTimes* start_up = nullptr;                 // null: start-up times are not recorded
  KernelCheck* kernels = nullptr;                   // null: the kernels that ran are not checked
  Decoding decoding = {};                           // set with eval.samples or eval.needles
  LayerFigures selection = {};                      // may be empty
};

class Trainer {
public:
  struct Start {
    uint64_t step = 0, tokens = 0; // steps and tokens completed before this attempt
    int64_t non_finite_streak = 0;
  };
  Trainer(TrainerParts parts, Start start);
  RankResult<Finished> run();

private:
  // Shares the shim's requests to this rank with all ranks.
  class ShimRequests : public StepHook {
  public:
    explicit ShimRequests(link::Link& link) : link_(link) {}
    void add_requests(StepRequests& requests) override;

  private:
    link::Link& link_;
  };

  RankResult<Finished> run_steps();
  TrainStep::Parts step_parts();
  void make_hooks();
  RankResult<void> await_data();
  RankResult<void> enqueue(uint64_t step);
  void tell_epoch(uint64_t step);
  RankResult<void> on_failed_recording(const RecordingError& error) const;
  RankResult<void> settle(size_t leave); // takes the results of all but the newest `leave` steps
  RankResult<void> on_result(const StepResult& result);
  RankResult<void> on_non_finite(uint64_t step, const std::string& what, NonFiniteAction action);
  RankResult<void> roll_back(uint64_t step, const std::string& what);
  RankResult<void> at_boundary(uint64_t step);
  RankResult<void> at_end();
  RankResult<void> call(TrainingHook& hook);
  RankResult<void> compare_kernels(choice::Pass pass);

  TrainerParts p_;
  const spec::TrainSection& train_;
  const RecordedSteps recorded_;
  const uint64_t tokens_per_step_;
  ShimRequests requests_;
  TrainStep step_;
  NonFiniteRule rule_;
  TrainingPosition position_;
  int64_t epoch_ = 0; // number of full passes over the data set
  bool stop_ = false, stop_with_checkpoint_ = false;
  std::vector<wire::NeedleCell> needles_;            // results of the evaluation that is due
  std::vector<std::unique_ptr<TrainingHook>> hooks_; // called in this order
};

} // namespace nsa::train
