// What a fetch keeps on disk beside its shards, so that it goes on after any end: the plan, written
// once, and how far it came, written again and again. Plain values; JSON forms.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/dataset/manifest.h"
#include "fetch/source_list.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nsa::fetch {

// What must be the same for a fetch to go on: sources as given (without secrets), tokenizer, how
// documents are cut and drawn.
using Request = nlohmann::json;

struct Plan {
  Request request;
  std::vector<PlannedFile> files;
};

// One split: whole shards, and the tokens of the one that is being written.
struct SplitState {
  std::vector<dataset::ShardRecord> shards;
  int64_t open_tokens = 0;
  int64_t tokens() const;
};

// All of it belongs together: the shards hold exactly what lies before this place.
struct FetchState {
  size_t file = 0;      // in Plan::files
  RowPlace place;       // in that file
  bool done = false;    // nothing is left to read
  SplitState splits[2]; // by dataset::Split
  std::vector<int64_t> source_documents;
  int64_t documents = 0, heldout_documents = 0, empty_documents = 0, replaced_characters = 0;
  uint64_t text_bytes = 0;
};

Status write_plan(const std::filesystem::path& folder, const Plan& plan);
Result<std::optional<Plan>> read_plan(const std::filesystem::path& folder); // none: not begun
Status write_state(const std::filesystem::path& folder, const FetchState& state);
Result<FetchState> read_state(const std::filesystem::path& folder); // none yet: the beginning
void remove_progress(const std::filesystem::path& folder);

} // namespace nsa::fetch
