// At most one nsad uses a state folder, whether it is a head or an agent.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <string>

namespace nsa::control {

// The lock is held as long as the process lives. The kernel releases it however the process ends.
// Error: kConflict if another nsad holds it.
Result<UniqueFd> lock_state_folder(const std::string& folder);

} // namespace nsa::control
