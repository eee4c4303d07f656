// Plans the kernels of a rank's model, and makes the model's configuration from the plan. The
// worker and the benchmarks use it.
#pragma once

#include "common/spec/run_spec.h"
#include "nsa_model/choice/kernel_plan.h"
#include "nsa_model/model_config/config.h"
#include "worker/rules/kernel_check.h"

#include <ATen/core/TensorBody.h>

#include <map>
#include <string>

namespace nsa::train {

struct PlannedModel {
  model::ModelConfig config;
  choice::KernelPlan kernels;
};

// Plans the run's model for `device`. `toggles` are resolved. It requests LibTorch's
// dense-attention backend that the toggles name.
Result<PlannedModel> plan_model(const spec::RunSpec& spec,
                                const std::map<std::string, std::string>& toggles,
                                at::Device device, bool bf16);

// Compares the kernels that run in this process from now on with the plan.
KernelCheck make_kernel_check(choice::KernelPlan kernels);

} // namespace nsa::train
