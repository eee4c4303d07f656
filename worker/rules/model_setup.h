// Translates the run's spec into the model's configuration. It uses no LibTorch.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"
#include "nsa_model/choice/kernel_plan.h"
#include "nsa_model/model_config/config.h"

#include <map>
#include <string>

namespace nsa::train {

// `toggles` are resolved, with defaults filled in. The plan of kernels decides the remaining
// fields.
Result<model::ModelConfig> model_config(const spec::RunSpec& spec,
                                        const std::map<std::string, std::string>& toggles);

// The error names every toggle whose value is not available.
Status check_refusals(const choice::KernelPlan& plan);

// Sets how the model is computed, according to the plan.
void apply(const choice::KernelPlan& plan, model::ModelConfig& config);

// cuda.graphs = "auto" captures micro-batches with fewer tokens than this. With more, the device is
// busy longer than the host needs for launches. On an H200 a step of 4,096 tokens gains 15 to 19 %,
// of 16,384 tokens 0.5 to 1.7 %. At 32,768 tokens no gain was certain (docs/lab: cuda-graphs).
inline constexpr int64_t kGraphsBelowTokens = 32768;

// Resolves the toggle cuda.graphs. `device_cannot` says why the device captures no graphs
// (runtime::Runtime::why_no_graphs()); empty if it can. Returns an error if "on" is requested and
// not possible.
struct GraphChoice {
  bool on = false;     // steps are captured as graphs
  std::string why_not; // set if "auto" does not use graphs
};
Result<GraphChoice> choose_graphs(const std::map<std::string, std::string>& toggles,
                                  const spec::RunSpec& spec, const std::string& device_cannot);

} // namespace nsa::train
