// How often each backend was taken for each part of the model: what really ran, beside what the
// plan of kernels says (nsa_model/choice/kernel_plan.h). Every operator counts where it takes a
// way. Passes that a CUDA graph replays are not counted again; decoding is not counted.
//
// Thread-safe: integers on the host, for the whole process.
#pragma once

#include "nsa_model/choice/kernel_plan.h"

namespace nsa::ops {

void count_kernel(choice::Part part, choice::Backend backend);
choice::KernelCounts kernel_counts();

} // namespace nsa::ops
