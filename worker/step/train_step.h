// TrainStep makes one optimizer update of one rank. It computes `accumulate` micro-batches forward
// and backward, launched one by one or replayed as graphs. It sums their gradients over micro-steps
// and ranks, updates this rank's shard of the parameters, and all-gathers the weights. The trainer,
// nsa-bench model and the tests all use it to make steps. Other work during a step is done by a
// StepHook; the rest is done between steps.
//
// enqueue() waits only where the host must: for a batch, for all work on a CPU, and for peers if
// there are several ranks. take() waits for the device. Training thread only.
#pragma once

#include "common/spec/run_spec.h"
#include "worker/link/phase_clock.h"
#include "worker/optimizer/optimizer.h"
#include "worker/rules/step_hook.h"
#include "worker/step/gradient_reducer.h"
#include "worker/step/micro_steps.h"
#include "worker/step/state_gatherer.h"

#include <array>
#include <deque>
#include <span>
#include <string_view>
#include <utility>

namespace nsa::train {

// Scalars after the gradients in their buffer. The same all-reduce sums them over ranks.
enum SyncScalar : size_t { kLoss, kStop, kStopWithCheckpoint, kCheckpoint, kSyncScalars };

ReducerOptions reducer_options(const spec::ParallelSection& parallel);
// Returns the shard of the parameters that a rank updates.
Shard shard_of_rank(const spec::ParallelSection& parallel, Rank rank, int world);

struct StepResult { // the same on every rank, except seconds and layer figures
  uint64_t step = 0;
  double learning_rate = 0, gradient_norm = 0;
  std::array<double, kSyncScalars> scalars{}; // sums over ranks; the loss is already the mean
  double seconds = 0, exposed_communication_seconds = 0;
  // Values of layers with the names of LayerFigures, which the TrainStep owns. Empty if they were
  // not requested. NaN if there was nothing to measure.
  std::vector<std::pair<std::string_view, double>> layers;

  double loss() const { return scalars[kLoss]; }
  bool asks(SyncScalar request) const { return scalars[request] > 0; }
};

class TrainStep {
public:
  struct Parts {
    runtime::Runtime& runtime;
    comm::Collectives& collectives;
    PhaseClock& clock;
    FlatState& state; // has kSyncScalars sync scalars
    BatchLoss loss;
    std::optional<StagedLoss> staged = std::nullopt; // set: steps are captured as graphs
    LayerFigures gates = {};                         // may be empty; taken for each record
    std::vector<StepHook*> hooks = {};
    // Layer figures and gradient norms by group are taken for a record at least this many steps
    // after the last record that had them. 0 means never.
    uint64_t layer_interval_steps = 0;
    LayerFigures selection = {}; // may be empty
  };
  TrainStep(Parts parts, const spec::TrainSection& train, ReducerOptions options);

  struct Request {
    uint64_t step = 0;
    uint64_t tokens = 0; // tokens completed before this step, for the progress page
    double learning_rate = 0;
    bool is_recorded = false; // the step gets a metric record
  };
  using NextBatch = std::function<std::shared_ptr<const data::Batch>()>;
  // Throws what the passes throw, and RecordingError if capture fails.
  comm::Outcome enqueue(const Request& request, const NextBatch& next_batch);

  size_t in_flight() const { return in_flight_.size(); }
  StepResult take(); // takes the oldest step in flight
  // The next step's time normally begins where the previous step ends. After an evaluation, a
  // checkpoint or a roll-back, call pause(), so that their time counts for no step.
  void pause() { goes_on_ = false; }

  // All-gathers masters and moments of all shards for a checkpoint. The device has finished when it
  // returns. Does nothing if every rank updates all parameters.
  comm::Outcome gather_state(uint64_t step);

  size_t graphs() const { return micro_steps_.graphs(); } // captured so far

private:
  struct InFlight {
    uint64_t step = 0;
    double learning_rate = 0;
    std::shared_ptr<const runtime::DeviceEvent> begin, end; // `begin` is null unless pause() came
                                                            // before; see there
    // Gradient norm, sync scalars, squared gradient norms of the groups if has_group_norms, then
    // `figures`.
    std::unique_ptr<runtime::Reading> values;
    bool has_group_norms = false;
    std::vector<const LayerFigures*> figures;
    std::optional<runtime::Stopwatch> waits; // pairs of marks; complete when `values` are
  };
  void enter(progress::Phase phase, uint64_t step, uint64_t micro_step = 0);
  void enter_on_host(progress::Phase phase, uint64_t step, uint64_t micro_step = 0);
  void run_micro_steps(uint64_t step, const NextBatch& next_batch);
  void put(const StepRequests& requests);
  void choose_figures(const Request& request, InFlight& step);
  comm::Outcome update(const Request& request, bool skip, InFlight& step);
  void take_figures(const InFlight& step, std::span<const double> values, StepResult& result) const;

  Parts p_;
  const int64_t accumulate_;
  GradientReducer reducer_;
  MicroSteps micro_steps_;
  Optimizer optimizer_;
  StateGatherer gatherer_;
  std::vector<std::string> group_names_; // "gradient_norms/<group>"
  uint64_t next_layer_step_ = 0;         // earlier steps have no layer figures except gates
  std::deque<InFlight> in_flight_;
  std::shared_ptr<const runtime::DeviceEvent> last_end_; // end of the last step from take()
  bool goes_on_ = false;
};

} // namespace nsa::train
