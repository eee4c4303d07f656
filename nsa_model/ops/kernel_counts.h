// Counts how often each backend was used for each part of the model, for a comparison with the plan
// of kernels (nsa_model/choice/kernel_plan.h). Every operator counts when it takes a backend.
// Passes that a CUDA graph replays are not counted again; decoding is not counted.
//
// Thread-safe: integers on the host, for the whole process.
#pragma once

#include "nsa_model/choice/kernel_plan.h"

namespace nsa::ops {

void count_kernel(choice::Part part, choice::Backend backend);
choice::KernelCounts kernel_counts();

} // namespace nsa::ops
