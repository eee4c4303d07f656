// The figures that the gates of a run ([[gate]]) judge, and the gates' views for users. Pure
// values.
#pragma once

#include "daemon/run_metrics/run_record.h"

#include <vector>

namespace nsa::control {

struct GateSources {
  const state::Run& run;
  const RunRecord& record; // it already includes the step
  const wire::RankStep& step;
  uint64_t updates; // updates that the step's record covers
  WallTime now;
  const std::vector<metrics::GpuSample>& gpus; // all GPUs of the node
};
gates::Figures figures_of(const GateSources& from);

std::vector<wire::GateView> gate_views(const gates::Evaluator& gates);

} // namespace nsa::control
