// Ended runs as users see them, from the ledger. A run whose documents cannot be read is shown as
// damaged, and the ledger records the damage. All calls are on the loop's thread.
#pragma once

#include "common/wire/api_types.h"
#include "daemon/store/ledger.h"

#include <string>
#include <unordered_set>
#include <vector>

namespace nsa::control {

struct OwnedSummary {
  store::ListedRow place;
  wire::RunSummary summary;
};

class StoredRuns {
public:
  // The ledger outlives this object.
  explicit StoredRuns(store::Ledger& ledger) : ledger_(ledger) {}

  wire::RunSummary summary_of(const store::StoredRun& run);
  // At most `limit` ended runs after a place of the list, newest first.
  Result<std::vector<OwnedSummary>> summaries(int64_t limit, const store::ListedRow& behind = {});
  // The same as JSON texts, each of them a row of a list (common/wire/run_row.h).
  Result<std::vector<store::ListedRow>> rows(int64_t limit, const store::ListedRow& behind = {});

private:
  wire::RunSummary damaged(const RunId& run, const std::string& why);
  wire::RunSummary read(const RunId& run, const nlohmann::json& shown, bool is_open);
  bool is_sound(const std::string& list_row);

  store::Ledger& ledger_;
  std::unordered_set<size_t> sound_rows_; // hashes of rows that were parsed once
};

} // namespace nsa::control
