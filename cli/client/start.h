// Starting nsad on demand, in user mode.
#pragma once

#include "common/base/result.h"
#include "common/net/paths.h"

#include <string>

namespace nsa::client {

// Starts <program_dir>/nsad in a session of its own, with its output appended to paths.log, and
// returns when it accepts connections on paths.socket; kUnavailable with the end of its log when it
// does not within 5 s. Two callers at once: one daemon wins its lock, and both find it.
Status start_daemon(const std::string& program_dir, const net::NodePaths& paths);

// The last `lines` lines of a text file; empty when it cannot be read.
std::string tail_of_file(const std::string& path, int lines);

} // namespace nsa::client
