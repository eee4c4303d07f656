// Runs as rows of a long list (GET /v1/runs?rows): values without names, and what a screen shows
// of the loss. A tenth of the bytes of RunSummary, so that ten thousand runs are listed at once.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string>
#include <vector>

namespace nsa::wire {

// Names of a row's values, in order. Only ever appended to: the ledger keeps rows.
const std::vector<std::string>& run_columns();

nlohmann::json to_row(const RunSummary& run);
// What a shorter row lacks has its default value.
Result<RunSummary> from_row(const nlohmann::json& row);

} // namespace nsa::wire
