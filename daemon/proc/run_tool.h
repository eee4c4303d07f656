// Runs a program that does one thing and ends (sbatch, kubectl, a probe of the network), and gives
// what it prints. Blocking, bounded in time; any thread.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "daemon/proc/launch.h"

#include <string>
#include <vector>

namespace nsa::proc {

// In PATH; a path is taken as it is. kNotFound: it is not there.
Result<std::string> find_tool(const std::string& name);

struct ToolRun {
  std::vector<std::string> arguments; // [0]: as for find_tool
  std::string input = {};
  std::string folder = "/";
  // Beside what such programs need of this process's environment; the rest of that is not given.
  std::vector<std::string> environment = {};
  std::vector<DescriptorMapping> descriptors = {}; // from 3 on
};

// kSystem: it ended otherwise than with 0, and what it said last; kUnavailable: it took longer than
// `limit`.
Result<std::string> run_tool(const ToolRun& tool, Duration limit);

} // namespace nsa::proc
