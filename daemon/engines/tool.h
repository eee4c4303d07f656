// Runs a program of another scheduler (sbatch, kubectl) and gives what it prints. Blocking, bounded
// in time; any thread.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::engines {

// In PATH. kNotFound: it is not there.
Result<std::string> find_tool(const std::string& name);

// `arguments`[0] is searched in PATH. It gets `input`, and of this process's environment only what
// such programs need. kSystem: it ended otherwise than with 0, and what it said last; kUnavailable:
// it took longer than `limit`.
Result<std::string> run_tool(const std::vector<std::string>& arguments, const std::string& input,
                             Duration limit, const std::string& folder = "/");

} // namespace nsa::engines
