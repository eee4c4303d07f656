// Trainer: the loop of one rank. A step is one optimizer update: `accumulate` micro-batches forward
// and backward, one reduction of gradients, one update. It owns nothing that it is given, and
// everything about the order of things: phases on the progress page, agreement between ranks at
// step boundaries (loss, stop and checkpoint requests ride behind the gradients), evaluation,
// checkpoints, the non-finite rule, injected faults. Training thread only.
#pragma once

#include "common/spec/run_spec.h"
#include "worker/data/evaluation.h"
#include "worker/data/loader.h"
#include "worker/faults/injection.h"
#include "worker/optimizer/optimizer.h"
#include "worker/rules/non_finite.h"
#include "worker/step/batch_loss.h"
#include "worker/step/gradient_reducer.h"
#include "worker/step/micro_steps.h"
#include "worker/step/state_gatherer.h"
#include "worker/telemetry/metrics_sink.h"
#include "worker/trainer/checkpointer.h"
#include "worker/trainer/start_up.h"

#include <deque>

namespace nsa::train {

// Words behind the gradients that are summed over ranks with them.
enum TailWord : size_t {
  kLossWord,
  kStopWord,
  kStopWithCheckpointWord,
  kCheckpointWord,
  kTailWords
};

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
  TokenLosses token_losses;         // of held-out text
  std::optional<StagedLoss> staged; // set: steps are recorded as graphs (toggle cuda.graphs)
  bool graphs_or_nothing = false;   // cuda.graphs = "on": no run without them is wanted
  data::Loader& loader;
  const data::EvaluationSet* evaluation = nullptr; // nothing: no held-out evaluation
  Checkpointer& checkpointer;
  std::vector<std::unique_ptr<MetricsSink>>& sinks; // rank 0
  std::optional<Injection> injection;
  GateMeans gates;                  // may be empty
  StartUpTimes* start_up = nullptr; // nothing: not told
};

class Trainer {
public:
  struct Start {
    uint64_t step = 0, tokens = 0; // completed before this attempt
    int64_t non_finite_streak = 0;
  };
  Trainer(TrainerParts parts, Start start);
  Attempt<Finished> run();

private:
  struct StepResult { // of a step that has completed
    uint64_t step = 0;
    double gradient_norm = 0, loss = 0, learning_rate = 0;
    double seconds = 0, exposed_communication_seconds = 0;
    bool stop = false, stop_with_checkpoint = false, checkpoint = false;
    std::map<std::string, double> gates; // where the step is recorded
  };
  struct Enqueued {
    uint64_t step = 0;
    double learning_rate = 0;
    std::shared_ptr<const runtime::Moment> begin, end; // begin: see Trainer::goes_on_
    // Gradient norm, the tail, and where the step is recorded the mean gates.
    std::unique_ptr<runtime::Reading> values;
    std::optional<runtime::Stopwatch> waits; // pairs of marks, passed as well
  };

  Attempt<void> run_step(uint64_t step);
  Attempt<void> update(uint64_t step, bool skips_collectives, Enqueued& enqueued);
  void enter(progress::Phase phase, uint64_t step, uint64_t micro_step = 0);
  void run_micro_steps(uint64_t step);
  Attempt<void> on_failed_recording(const RecordingError& error) const;
  void put_requests();
  Attempt<void> settle(size_t leave); // results of all but the newest `leave` steps
  Attempt<void> on_result(const StepResult& result);
  Attempt<void> on_non_finite(uint64_t step, const std::string& what, NonFiniteAction action);
  Attempt<void> roll_back(uint64_t step, const std::string& what);
  void report_step(const StepResult& result);
  Attempt<void> evaluate_now(uint64_t step);
  Attempt<void> at_boundary(uint64_t step);
  Attempt<void> checkpoint_now(uint64_t step);
  void record_memory(const char* stage);
  void fault_before(uint64_t step);
  void fault_in_collect(uint64_t step);
  bool recorded(uint64_t step) const; // has a metric record
  bool injects(Fault fault, uint64_t step) const;
  void announce_fault();
  bool evaluates_at(uint64_t step) const;
  bool checkpoints_at(uint64_t step) const;

  TrainerParts p_;
  const spec::TrainSection& train_;
  const uint64_t first_step_, last_step_;
  const uint64_t tokens_per_step_;
  GradientReducer reducer_;
  MicroSteps micro_steps_;
  Optimizer optimizer_;
  StateGatherer gatherer_;
  NonFiniteRule rule_;
  std::deque<Enqueued> enqueued_;
  uint64_t tokens_; // of completed steps
  StepResult last_; // newest completed step
  bool last_finite_ = true;
  bool stop_ = false, stop_with_checkpoint_ = false, checkpoint_requested_ = false;
  std::shared_ptr<const runtime::Moment> last_end_; // of the newest completed step
  // The next step begins where the one before ends. Not behind an evaluation, a checkpoint or a
  // rollback, whose time is no step's.
  bool goes_on_ = false;
  double seconds_since_record_ = 0; // of steps since the last metric record
  double exposed_since_record_ = 0;
  uint64_t steps_since_record_ = 0, clipped_since_record_ = 0;
  uint64_t results_seen_ = 0;
};

} // namespace nsa::train
