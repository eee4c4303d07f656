// The content of <run>/summary.json after a run has ended: its result, and its measured cost beside
// the estimate of `plan`. Pure.
#pragma once

#include "common/base/json.h"
#include "daemon/run_metrics/run_record.h"

namespace nsa::control {

nlohmann::json summary_json(const state::Run& run, const RunRecord& record);

} // namespace nsa::control
