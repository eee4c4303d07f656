#include "worker/trainer/metrics_hook.h"

#include "common/base/log.h"
#include "worker/process_info/process_info.h"

#include <algorithm>
#include <cmath>

namespace nsa::train {

namespace {
constexpr uint64_t kSteadyAfterSteps = 10; // allocators no longer grow after this many steps

// JSON cannot represent NaN, so values that are not finite are left out.
void put_layers(const StepResult& result, wire::RankStep& step) {
  for (const auto& [name, value] : result.layers) {
    if (!std::isfinite(value)) continue;
    const size_t slash = name.find('/');
    for (const auto& row : wire::kLayerMetrics)
      if (slash != name.npos && name.substr(0, slash) == row.name)
        (step.*row.at)[std::string(name.substr(slash + 1))] = value;
  }
}
} // namespace

void report_memory(Rank rank, const char* stage, const runtime::Runtime& runtime,
                   link::Link& link) {
  const runtime::DeviceMemory memory = runtime.memory();
  link.send(wire::RankMemory{rank, stage, runtime::resident_bytes(), memory.allocated,
                             memory.reserved, memory.peak, runtime.used_on_device()});
}

void MetricsHook::on_result(const StepResult& result, const TrainingPosition& position) {
  ++steps_;
  next_.step_seconds += result.seconds;
  next_.slowest_step_seconds = std::max(next_.slowest_step_seconds, result.seconds);
  if (std::isfinite(result.gradient_norm))
    next_.largest_gradient_norm = std::max(next_.largest_gradient_norm, result.gradient_norm);
  next_.exposed_communication_seconds += result.exposed_communication_seconds;
  const double clip = p_.spec.train.gradient_clip;
  if (clip > 0 && result.gradient_norm > clip) ++next_.clipped_steps;
  if (p_.recorded.has(result.step)) record(result, position);
  ++results_seen_;
  if (results_seen_ == 1) report_memory(p_.rank, "first-step", p_.runtime, p_.link);
  if (results_seen_ == kSteadyAfterSteps) report_memory(p_.rank, "steady", p_.runtime, p_.link);
}

void MetricsHook::record(const StepResult& result, const TrainingPosition& position) {
  const wire::RankStep step = take_record(result, position);
  for (auto& sink : p_.sinks)
    sink->step(step);
  if (p_.rank == 0)
    log::info("train", "step",
              {{"step", std::to_string(step.step)},
               {"loss", std::to_string(step.loss)},
               {"gradient_norm", std::to_string(step.gradient_norm)},
               {"seconds", std::to_string(step.step_seconds)}});
  // JSON cannot represent NaN, so a step that is not finite is reported as RankNonFinite instead.
  if (position.finite) p_.link.send(step);
}

wire::RankStep MetricsHook::take_record(const StepResult& result,
                                        const TrainingPosition& position) {
  const runtime::DeviceMemory memory = p_.runtime.memory();
  wire::RankStep step = std::exchange(next_, {});
  step.rank = p_.rank;
  step.step = result.step;
  step.tokens = position.tokens;
  step.loss = result.loss();
  step.gradient_norm = result.gradient_norm;
  step.learning_rate = result.learning_rate;
  step.step_seconds /= static_cast<double>(std::exchange(steps_, 0));
  const auto tokens = static_cast<double>(p_.spec.tokens_per_step());
  step.tokens_per_second = step.step_seconds > 0 ? tokens / step.step_seconds : 0;
  step.phase_seconds = p_.clock.take_seconds();
  for (const auto& [name, seconds] : step.phase_seconds)
    if (const auto phase = progress::phase_from_name(name);
        phase && progress::phase_info(*phase).counts_as == progress::TimeUse::kDataWait)
      step.data_wait_seconds += seconds;
  put_layers(result, step);
  if (p_.start_up != nullptr && results_seen_ == 0) {
    p_.start_up->passed("first-step");
    step.start_up_seconds = p_.start_up->seconds();
  }
  step.resident_bytes = runtime::resident_bytes();
  step.allocated_bytes = memory.allocated;
  step.reserved_bytes = memory.reserved;
  step.peak_bytes = memory.peak;
  return step;
}

} // namespace nsa::train
