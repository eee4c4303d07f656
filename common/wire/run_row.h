// Runs as rows of a long list (GET /v1/runs?rows): values without names, and as many points of the
// loss as a screen shows. A row has a tenth of the bytes of a RunSummary, so 10,000 runs fit an
// answer.
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
