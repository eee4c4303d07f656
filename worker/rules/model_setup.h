// From the run's spec to what the model is: a pure translation, no LibTorch.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"
#include "nsa_model/choice/kernel_plan.h"
#include "nsa_model/model_config/config.h"

#include <map>
#include <string>

namespace nsa::train {

// `toggles`: resolved, defaults filled in. Without what the plan of kernels decides.
Result<model::ModelConfig> model_config(const spec::RunSpec& spec,
                                        const std::map<std::string, std::string>& toggles);

// An error that names every toggle whose value cannot be had.
Status check_refusals(const choice::KernelPlan& plan);

// How the model is computed, as the plan says.
void apply(const choice::KernelPlan& plan, model::ModelConfig& config);

// "auto" of cuda.graphs records micro-batches of fewer tokens than this: with more the device is
// busy longer than the host takes to launch. On an H200 a step of 4,096 tokens gains 15 to 19 %, of
// 16,384 tokens 0.5 to 1.7 %, of 32,768 nothing that is sure (docs/lab: cuda-graphs).
inline constexpr int64_t kGraphsBelowTokens = 32768;

// Toggle cuda.graphs. `device_cannot`: why the device records none
// (runtime::Runtime::why_no_graphs()); empty where it does. An error when "on" is asked for and not
// served.
struct GraphChoice {
  bool on = false;     // steps are recorded as graphs
  std::string why_not; // where "auto" leaves it
};
Result<GraphChoice> choose_graphs(const std::map<std::string, std::string>& toggles,
                                  const spec::RunSpec& spec, const std::string& device_cannot);

} // namespace nsa::train
