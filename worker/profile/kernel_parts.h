// What a kernel of the attention operator is for, by its name. One launch sequence computes all
// branches (nsa_model/kernels/fused), partly beside each other, so that no scope can say it. Pure.
#pragma once

#include "nsa_model/ops/step_part.h"

#include <optional>
#include <string_view>

namespace nsa::profile {

// `kernel`: demangled, with its template arguments. Nothing for other kernels. The selection
// computes scores and top-k in one kernel.
std::optional<ops::StepPart> part_of_attention_kernel(std::string_view kernel);

// Whether it is a kernel of the driver that fills memory: "memset32". A graph has no kernel of it.
bool is_memset_kernel(std::string_view kernel);

} // namespace nsa::profile
