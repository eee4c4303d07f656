// Makes the plan of kernels for a rank's model, and the model's configuration from it. The worker
// and the benchmarks use it.
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

// The model of this run as `device` computes it. `toggles`: resolved. Asks LibTorch for the backend
// of dense attention that the toggles name.
Result<PlannedModel> plan_model(const spec::RunSpec& spec,
                                const std::map<std::string, std::string>& toggles,
                                at::Device device, bool bf16);

// Holds what runs in this process from here on against the plan.
KernelCheck make_kernel_check(choice::KernelPlan kernels);

} // namespace nsa::train
