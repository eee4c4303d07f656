// Takes the stacks of a live rank's threads. nsa-evidence does it and stops the process for some
// milliseconds. This blocks for about two seconds. The kernel must allow this user to trace the
// rank.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"

#include <string>

namespace nsa::cli {

// `program_dir` is the folder of nsa-evidence. Error: kNotFound if the process has ended or is not
// on this host.
Result<std::string> take_rank_stacks(const std::string& program_dir, Rank rank, int64_t pid);

} // namespace nsa::cli
