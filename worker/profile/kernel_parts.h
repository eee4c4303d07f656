// Finds the part of a kernel of the attention operator by its name. One launch sequence computes
// all branches (nsa_model/kernels/fused), partly concurrently, so scopes cannot tell. It does no
// I/O.
#pragma once

#include "nsa_model/ops/step_part.h"

#include <optional>
#include <string_view>

namespace nsa::profile {

// `kernel` is the demangled name with template arguments. Returns nullopt for other kernels. The
// selection kernel computes scores and top-k together.
std::optional<ops::StepPart> part_of_attention_kernel(std::string_view kernel);

// Returns whether it is a kernel by which the driver fills memory ("memset32"). A captured graph
// does not list it.
bool is_memset_kernel(std::string_view kernel);

} // namespace nsa::profile
