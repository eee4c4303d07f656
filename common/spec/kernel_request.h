// Makes the request for the plan of kernels from a run file (nsa_model/choice/kernel_plan.h). No
// I/O.
#pragma once

#include "common/spec/run_spec.h"
#include "nsa_model/choice/kernel_plan.h"

#include <map>
#include <string>

namespace nsa::spec {

choice::ModelSizes model_sizes(const RunSpec& spec);

// `toggles` are spec.toggles or the resolved ones. An unknown value counts as "auto".
choice::KernelRequest kernel_request(const RunSpec& spec,
                                     const std::map<std::string, std::string>& toggles);

// Returns the plan for ranks whose device cannot be queried. It assumes a GPU of compute capability
// 9.0, which every kernel supports.
choice::KernelPlan plan_kernels(const RunSpec& spec, bool gpu, bool bf16);

} // namespace nsa::spec
