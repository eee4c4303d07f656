// Runs that have ended, as users see them, of what the ledger keeps. A run whose documents cannot
// be read is shown as damaged, and the ledger is told, so that it is set aside. On the loop's
// thread.
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
  explicit StoredRuns(store::Ledger& ledger) : ledger_(ledger) {} // which outlives it

  wire::RunSummary summary_of(const store::StoredRun& run);
  // Newest first; `limit` of those that have ended and lie behind a place.
  Result<std::vector<OwnedSummary>> summaries(int64_t limit, const store::ListedRow& behind = {});
  // The same as rows alone, each of them a row of a list (common/wire/run_row.h).
  Result<std::vector<store::ListedRow>> rows(int64_t limit, const store::ListedRow& behind = {});

private:
  wire::RunSummary damaged(const RunId& run, const std::string& why);
  wire::RunSummary read(const RunId& run, const nlohmann::json& shown, bool is_open);
  bool is_sound(const std::string& list_row);

  store::Ledger& ledger_;
  std::unordered_set<size_t> sound_rows_; // hashes of rows that were read once
};

} // namespace nsa::control
