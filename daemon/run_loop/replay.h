// The state of a run from its events in the ledger: what was applied is applied again. Pure.
#pragma once

#include "common/base/result.h"
#include "daemon/state/state.h"
#include "daemon/store/rows.h"

#include <vector>

namespace nsa::control {

struct Replayed {
  state::Run run;
  int64_t next_order = 1; // of the queue, behind it
};

// `events`: all of the run's that are replayed, oldest first. kCorrupt names the event that cannot
// be read, or says that they give no run.
Result<Replayed> replay(const RunId& run, const std::vector<store::EventRow>& events,
                        int64_t next_order);

} // namespace nsa::control
