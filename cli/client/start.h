// Starts nsad on demand, in user mode.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/net/paths.h"

#include <functional>
#include <string>

namespace nsa::client {

struct StartLimits { // with a load of 20, starts have taken more than 5 s
  Duration patience = std::chrono::seconds(5), most = std::chrono::seconds(30);
};

// Starts <program_dir>/nsad in its own session, with its output appended to paths.log. Returns when
// nsad accepts connections on paths.socket. The error kUnavailable holds the end of the log. It
// means that nsad has exited or did not accept in time. After `patience` is over, `notice` gets the
// log's path, if it is set. If two callers start one nsad each, one of them gets the lock, and both
// callers find that one.
Status start_daemon(const std::string& program_dir, const net::NodePaths& paths,
                    const std::function<void(const std::string&)>& notice = {},
                    const StartLimits& limits = {});

// Returns the last `lines` lines of a text file; empty if it cannot be read.
std::string tail_of_file(const std::string& path, int lines);

} // namespace nsa::client
