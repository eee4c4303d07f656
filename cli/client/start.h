// Starting nsad on demand, in user mode.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/net/paths.h"

#include <functional>
#include <string>

namespace nsa::client {

struct StartLimits { // starts under a load of 20 have taken longer than 5 s
  Duration patience = std::chrono::seconds(5), most = std::chrono::seconds(30);
};

// Starts <program_dir>/nsad in a session of its own, with its output appended to paths.log, and
// returns when it accepts connections on paths.socket. kUnavailable, with the end of its log: nsad
// has ended, or does not accept in time. After the patience is over, `notice`, if any, gets the
// log's path. If two callers start one each, one nsad gets the lock, and both callers find it.
Status start_daemon(const std::string& program_dir, const net::NodePaths& paths,
                    const std::function<void(const std::string&)>& notice = {},
                    const StartLimits& limits = {});

// The last `lines` lines of a text file; empty when it cannot be read.
std::string tail_of_file(const std::string& path, int lines);

} // namespace nsa::client
