// A run as users see it, in two documents that the ledger keeps and does not read: the last summary
// and its row in a list. nsad keeps no ended run in memory and passes these on as they are, so a
// list of 10,000 runs is read from an index and not computed. Documents of an older nsad lack newer
// members, which then have their defaults. Pure; any thread.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"
#include "daemon/store/rows.h"

#include <string>

namespace nsa::control {

// What of a row is about the run as a whole: both documents, its id, state and end.
void show(const wire::RunSummary& summary, store::RunProgressRow& row);

std::string list_row(const wire::RunSummary& summary);

// kCorrupt: it is no summary.
Result<wire::RunSummary> summary_from(const nlohmann::json& shown, const RunId& run);

// Of a run whose rows cannot be read: why, and who it was. One that was set aside before says so
// itself.
wire::RunSummary damaged_summary(const store::RunLabel& label, const std::string& why);

} // namespace nsa::control
