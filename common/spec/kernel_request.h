// Makes the request for the plan of kernels from a run file (nsa_model/choice/kernel_plan.h). Pure.
#pragma once

#include "common/spec/run_spec.h"
#include "nsa_model/choice/kernel_plan.h"

#include <map>
#include <string>

namespace nsa::spec {

choice::ModelSizes model_sizes(const RunSpec& spec);

// `toggles`: spec.toggles or the resolved ones. A value that is none of a toggle's counts as
// "auto".
choice::KernelRequest kernel_request(const RunSpec& spec,
                                     const std::map<std::string, std::string>& toggles);

// The plan for ranks whose device is not there to be asked: a GPU is one of compute capability 9.0,
// which every kernel serves.
choice::KernelPlan plan_kernels(const RunSpec& spec, bool gpu, bool bf16);

} // namespace nsa::spec
