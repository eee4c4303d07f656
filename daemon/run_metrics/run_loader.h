// A run as the ledger has it: its events replayed, its record filled from its rows. Reads only.
#pragma once

#include "daemon/run_metrics/run_metrics.h"
#include "daemon/store/ledger.h"

#include <string>

namespace nsa::control {

struct LoadedRun {
  state::Run run;
  RunRecord record;
  int64_t next_order = 1; // of the queue, behind it
};

// `folder`: <state>/runs/<id>. kCorrupt: rows of the run cannot be used, now or later. Other errors
// are SQLite's, and may pass.
Result<LoadedRun> read_run(store::Ledger& ledger, const RunId& run, const std::string& folder,
                           int64_t next_order);
// The same, into the state and the records.
Status load_run(store::Ledger& ledger, const RunId& run, const std::string& folder, RunLoop& loop,
                RunMetrics& metrics);

// The uid that a run belongs to, open or ended; -1: not known.
int64_t owner_of(const RunMetrics& metrics, store::Ledger& ledger, const RunId& run);

} // namespace nsa::control
