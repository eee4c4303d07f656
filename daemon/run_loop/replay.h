// Rebuilds the state of a run from its events in the ledger by applying them again. Pure function.
#pragma once

#include "common/base/result.h"
#include "daemon/state/state.h"
#include "daemon/store/rows.h"

#include <vector>

namespace nsa::control {

struct Replayed {
  state::Run run;
  int64_t next_order = 1; // next free queue position, after this run's
};

// `events` are all events of the run that are to be replayed, oldest first. Fails with kCorrupt if
// an event cannot be read, or if the events give no run.
Result<Replayed> replay(const RunId& run, const std::vector<store::EventRow>& events,
                        int64_t next_order);

} // namespace nsa::control
