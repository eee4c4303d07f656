// One nsad has a state folder, whether it is a head or an agent.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <string>

namespace nsa::control {

// Held as long as the process lives; the kernel lets go of it however the process ends. kConflict:
// another nsad has it.
Result<UniqueFd> lock_state_folder(const std::string& folder);

} // namespace nsa::control
