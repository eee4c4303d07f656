// What the gates of a run ([[gate]]) look at, made of what nsad knows of it, and how they are
// shown. Pure values.
#pragma once

#include "daemon/run_metrics/run_record.h"

#include <vector>

namespace nsa::control {

struct GateSources {
  const state::Run& run;
  const RunRecord& record; // with the step noted
  const wire::RankStep& step;
  uint64_t updates; // that the step's record stands for
  WallTime now;
  const std::vector<metrics::GpuSample>& gpus; // of the node
};
gates::Figures figures_of(const GateSources& from);

std::vector<wire::GateView> gate_views(const gates::Evaluator& gates);

} // namespace nsa::control
