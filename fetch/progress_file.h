// The files that a fetch keeps beside its shards, so that it can continue after any interruption.
// The plan is written once, and the state again and again. Plain values with JSON forms.
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

// What must not change when a fetch continues: sources as given (without secrets), tokenizer, and
// how documents are cut and assigned to splits.
using Request = nlohmann::json;

struct Plan {
  Request request;
  std::vector<PlannedFile> files;
};

// One split: complete shards, and the number of tokens in the shard that is being written.
struct SplitState {
  std::vector<dataset::ShardRecord> shards;
  int64_t open_tokens = 0;
  int64_t tokens() const;
};

// One consistent state: the shards hold exactly the text before this place.
struct FetchState {
  size_t file = 0;      // index in Plan::files
  RowPlace place;       // place in that file
  bool done = false;    // nothing is left to read
  SplitState splits[2]; // indexed by dataset::Split
  std::vector<int64_t> source_documents;
  int64_t documents = 0, heldout_documents = 0, empty_documents = 0, replaced_characters = 0;
  uint64_t text_bytes = 0;
};

Status write_plan(const std::filesystem::path& folder, const Plan& plan);
Result<std::optional<Plan>> read_plan(const std::filesystem::path& folder); // nullopt: not begun
Status write_state(const std::filesystem::path& folder, const FetchState& state);
// Without a file: the initial state.
Result<FetchState> read_state(const std::filesystem::path& folder);
void remove_progress(const std::filesystem::path& folder);

} // namespace nsa::fetch
