// Runs as rows of a long list (GET /v1/runs?rows): values without names, and what a screen shows
// of the loss. A tenth of the bytes of RunSummary, so that ten thousand runs are listed at once.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string>
#include <string_view>
#include <vector>

namespace nsa::wire {

// Names of a row's values, in order. Only ever appended to: the ledger keeps rows.
const std::vector<std::string>& run_columns();

nlohmann::json to_row(const RunSummary& run);
// The runs of {"items":[row, row, ...]}, as text, without a document of it in between. What a
// shorter row lacks, or has null for, has its default value; what a longer one has is left out.
// kCorrupt: not JSON, no items, or a value of another type. `total`: of the answer, all runs that
// are stored; unchanged where it is not said.
Result<std::vector<RunSummary>> read_rows(std::string_view answer, int64_t* total = nullptr);

} // namespace nsa::wire
