// Which kernels a rank's model is computed by: chosen before the model is made, said afterwards.
// For the worker, and for measurements that do as it does.
#pragma once

#include "common/spec/run_spec.h"
#include "nsa_model/model/config.h"

#include <ATen/core/TensorBody.h>

#include <map>
#include <string>

namespace nsa::train {

// The model of this run as `device` computes it. `toggles`: resolved.
Result<model::ModelConfig> model_config_on(const spec::RunSpec& spec,
                                           const std::map<std::string, std::string>& toggles,
                                           at::Device device, bool bf16);

// Part -> what computes it and why (model::kernels_in_effect()). Where "auto" did not take the
// fused attention kernels, part "attention" says why.
std::map<std::string, std::string> kernels_in_effect(const spec::RunSpec& spec,
                                                     const model::ModelConfig& config,
                                                     at::Device device, bool bf16);

} // namespace nsa::train
