// Runs as rows of a long list (GET /v1/runs?rows): values without names, and only as many points of
// the loss as a screen shows. A row has a tenth of the bytes of a RunSummary, so 10,000 runs fit
// into a response.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string>
#include <string_view>
#include <vector>

namespace nsa::wire {

// Names of a row's values, in order. Only append to it, because the ledger stores rows.
const std::vector<std::string>& run_columns();

nlohmann::json to_row(const RunSummary& run);
// Parses the runs of {"items":[row, row, ...]}, without building a JSON tree. Values that a shorter
// row lacks, or that are null, keep their defaults; extra values of a longer row are ignored.
// Error: kCorrupt if it is not JSON, has no items, or has a value of another type. `total` gets the
// number of all stored runs, if the response has it.
Result<std::vector<RunSummary>> read_rows(std::string_view answer, int64_t* total = nullptr);

} // namespace nsa::wire
