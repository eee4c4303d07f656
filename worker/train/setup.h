// From the run's spec to what the model is: a pure translation, no LibTorch.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"
#include "nsa_model/model/config.h"

#include <map>
#include <string>

namespace nsa::train {

// `toggles`: resolved, defaults filled in.
Result<model::ModelConfig> model_config(const spec::RunSpec& spec,
                                        const std::map<std::string, std::string>& toggles);

} // namespace nsa::train
