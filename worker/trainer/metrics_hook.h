// MetricsHook adds up the measurements of steps. Every train.log_interval_steps steps it sends them
// to the shim and to rank 0's sinks. Training thread only.
#pragma once

#include "common/spec/run_spec.h"
#include "worker/link/link.h"
#include "worker/telemetry/metrics_sink.h"
#include "worker/trainer/hooks.h"
#include "worker/trainer/start_up.h"

namespace nsa::train {

// Sends RankMemory. `stage` is "boot", "model", "loader", "first-step" or "steady".
void report_memory(Rank rank, const char* stage, const runtime::Runtime& runtime, link::Link& link);

// Steps that have a metric record: the last one of each interval, the attempt's first and the run's
// last.
struct RecordedSteps {
  uint64_t interval = 1, first = 1, last = 1;
  bool has(uint64_t step) const { return step % interval == 0 || step == last || step == first; }
};

class MetricsHook : public TrainingHook {
public:
  struct Parts {
    const spec::RunSpec& spec;
    Rank rank = 0;
    runtime::Runtime& runtime;
    link::Link& link;
    PhaseClock& clock;
    std::vector<std::unique_ptr<MetricsSink>>& sinks;
    StartUpTimes* start_up = nullptr; // null: start-up times are not recorded
    RecordedSteps recorded;
  };
  explicit MetricsHook(const Parts& parts) : p_(parts) {}
  void on_result(const StepResult& result, const TrainingPosition& position) override;

private:
  wire::RankStep take_record(const StepResult& result, const TrainingPosition& position);
  void record(const StepResult& result, const TrainingPosition& position);

  Parts p_;
  wire::RankStep next_; // the next record: sums over the steps since the last one
  uint64_t steps_ = 0;  // number of steps in next_
  uint64_t results_seen_ = 0;
};

} // namespace nsa::train
