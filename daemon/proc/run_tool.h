// Runs a program that does one thing and ends (sbatch, kubectl, a probe of the network), and
// returns its output. The call blocks for a bounded time. Any thread may call it.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "daemon/proc/launch.h"

#include <string>
#include <vector>

namespace nsa::proc {

// Finds `name` in PATH; a name with a slash is used as it is. Fails with kNotFound if the program
// does not exist.
Result<std::string> find_tool(const std::string& name);

struct ToolRun {
  std::vector<std::string> arguments; // [0] is as for find_tool
  std::string input = {};
  std::string folder = "/";
  // Variables that are added to the few that such tools need of this process's environment. The
  // tool gets no others.
  std::vector<std::string> environment = {};
  std::vector<DescriptorMapping> descriptors = {}; // targets from 3 on
};

// Errors: kSystem if the program exits with another status than 0, with its last words;
// kUnavailable if it takes longer than `limit`.
Result<std::string> run_tool(const ToolRun& tool, Duration limit);

} // namespace nsa::proc
