// A run as users see it, in two documents: the last summary and its row in a list. The ledger
// stores them without reading them. nsad keeps no ended run in memory and sends these documents as
// they are. So a list of 10,000 runs is read from an index and not computed. Documents of an older
// nsad lack newer members, which then have their defaults. Pure functions; any thread may call
// them.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"
#include "daemon/store/rows.h"

#include <string>

namespace nsa::control {

// Fills in the columns about the run as a whole: both documents, its id, state and end.
void show(const wire::RunSummary& summary, store::RunProgressRow& row);

std::string list_row(const wire::RunSummary& summary);

// Fails with kCorrupt if `shown` is not a summary.
Result<wire::RunSummary> summary_from(const nlohmann::json& shown, const RunId& run);

// Summary of a run whose rows cannot be read: why, and its label. If the run was set aside before,
// its stored list row is used.
wire::RunSummary damaged_summary(const store::RunLabel& label, const std::string& why);

} // namespace nsa::control
