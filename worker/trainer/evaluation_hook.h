// EvaluationHook computes the held-out loss when it is due. Training thread only.
#pragma once

#include "worker/link/link.h"
#include "worker/telemetry/metrics_sink.h"
#include "worker/trainer/evaluator.h"
#include "worker/trainer/hooks.h"

namespace nsa::train {

// Returns whether `step` ends an evaluation interval, or is the last step and eval.at_end is set.
bool evaluation_due(const spec::RunSpec& spec, uint64_t step);

class EvaluationHook : public TrainingHook {
public:
  struct Parts {
    const spec::RunSpec& spec;
    Evaluator evaluator; // keep_in is set before each evaluation
    std::filesystem::path run_folder;
    link::Link& link;
    std::vector<std::unique_ptr<MetricsSink>>& sinks; // rank 0 only
    const std::vector<wire::NeedleCell>& needles;     // counted before the evaluation; rank 0 only
  };
  explicit EvaluationHook(Parts parts) : p_(std::move(parts)) {}
  bool due(uint64_t step) const override;
  RankResult<std::string> run(const TrainingPosition& position) override;

private:
  std::map<std::string, double> losses_by_name(const std::vector<double>& losses) const;

  Parts p_;
};

} // namespace nsa::train
