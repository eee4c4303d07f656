// Loads a run from the ledger: replays its events and fills its record from its rows. It only
// reads.
#pragma once

#include "daemon/run_metrics/run_metrics.h"
#include "daemon/store/ledger.h"

#include <string>

namespace nsa::control {

struct LoadedRun {
  state::Run run;
  RunRecord record;
  int64_t next_order = 1; // next free queue position, after this run's
};

// `folder` is <state>/runs/<id>. kCorrupt means that rows of the run are permanently unusable.
// Other errors come from SQLite and may be transient.
Result<LoadedRun> read_run(store::Ledger& ledger, const RunId& run, const std::string& folder,
                           int64_t next_order);
// Loads a run into the loop's state and the metrics' records.
Status load_run(store::Ledger& ledger, const RunId& run, const std::string& folder, RunLoop& loop,
                RunMetrics& metrics);

// The uid that owns a run, open or ended; -1 if unknown.
int64_t owner_of(const RunMetrics& metrics, store::Ledger& ledger, const RunId& run);

} // namespace nsa::control
