// Finds live shims, whatever ledger and files say. A shim's command line names its attempt folder.
// So one pass over the processes of the host finds all of them, however many runs are stored. It
// opens no folder of a run. Any thread; keeps nothing.
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

// Of attempts below `state_folder`, the newest attempt of a run first. A process is believed to be
// a shim of a run only if it has the user id of the owner of the run's folder: other users can only
// speak of runs of their own.
std::vector<LiveShim> find_live_shims(const std::string& state_folder);

} // namespace nsa::control
