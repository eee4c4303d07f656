// Counts how often each backend was used for each part of the model. The worker compares the counts
// with the kernel plan (nsa_model/choice/kernel_plan.h). Every operator counts when it chooses a
// backend. Replays of a CUDA graph are not counted, and neither is decoding.
//
// Thread-safe: integers on the host, for the whole process.
#pragma once

#include "nsa_model/choice/kernel_plan.h"

namespace nsa::ops {

void count_kernel(choice::Part part, choice::Backend backend);
choice::KernelCounts kernel_counts();

} // namespace nsa::ops
