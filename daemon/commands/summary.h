// <run>/summary.json of a run that has ended: how it ended, and what it took beside what `plan`
// said it would. Pure.
#pragma once

#include "common/base/json.h"
#include "daemon/run_metrics/run_record.h"

namespace nsa::control {

nlohmann::json summary_json(const state::Run& run, const RunRecord& record);

} // namespace nsa::control
