// Stacks of a live rank's threads, taken by nsa-evidence, which stops the process for some
// milliseconds. Blocking: about two seconds. The kernel must let this user trace the rank.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"

#include <string>

namespace nsa::cli {

// `program_dir`: where nsa-evidence lies. kNotFound: the process is gone, or not on this host.
Result<std::string> take_rank_stacks(const std::string& program_dir, Rank rank, int64_t pid);

} // namespace nsa::cli
