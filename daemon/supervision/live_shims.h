// Finds live shims independently of ledger and files. A shim's command line names its attempt
// folder. So one pass over the processes of the host finds all of them, however many runs are
// stored. It opens no folder of a run. Any thread may call it; it keeps no state.
#pragma once

#include "common/base/ids.h"
#include "daemon/proc/process.h"

#include <string>
#include <vector>

namespace nsa::control {

struct LiveShim {
  proc::ProcessIdentity identity;
  uid_t user = 0;
  RunId run;
  AttemptNumber attempt = 0;
  std::string folder; // <state folder>/runs/<run>/attempts/<attempt>
};

// Live shims of attempts below `state_folder`, the newest attempt of a run first. A process counts
// as a shim only if its user owns the run's folder. So other users can only claim runs of their
// own.
std::vector<LiveShim> find_live_shims(const std::string& state_folder);

} // namespace nsa::control
