#include "fetch/progress_file.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/dataset/generations.h"

namespace nsa::fetch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPlanFile = "plan.json";
constexpr const char* kStateFile = "state.json";
constexpr size_t kMostBytes = size_t{256} << 20;
constexpr int kVersion = 1;
constexpr const char* kRestart = "start again with --restart";

json to_json(const SplitState& split) {
  json shards = json::array();
  for (const dataset::ShardRecord& shard : split.shards)
    shards.push_back({{"file", shard.file},
                      {"tokens", shard.tokens},
                      {"bytes", shard.bytes},
                      {"checksum", shard.checksum}});
  return {{"shards", std::move(shards)}, {"open_tokens", split.open_tokens}};
}

SplitState split_from(const json& value, dataset::Split which) {
  SplitState split;
  for (const json& shard : value.at("shards"))
    split.shards.push_back({shard.at("file").get<std::string>(), which, dataset::ShardFormat::kLlmC,
                            shard.at("tokens").get<int64_t>(), shard.at("bytes").get<uint64_t>(),
                            shard.at("checksum").get<std::string>()});
  split.open_tokens = value.at("open_tokens").get<int64_t>();
  return split;
}

// Reads, parses and converts the file. Any damage is kCorrupt, and the error names the file.
template <class T> Result<std::optional<T>> read(const fs::path& path, T (*convert)(const json&)) {
  auto text = read_file(path, kMostBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::nullopt;
  if (!text) return fail(std::move(text).error());
  auto tree = parse_json(*text, path.string(), {kMostBytes});
  if (!tree) return fail(ErrorCode::kCorrupt, tree.error().what, kRestart);
  try {
    if (tree->at("version").get<int>() != kVersion)
      return fail(ErrorCode::kUnsupported, path.string() + " is of another version", kRestart);
    return convert(*tree);
  } catch (const json::exception& error) {
    return fail(ErrorCode::kCorrupt, path.string() + ": " + reason_of(error), kRestart);
  }
}

Plan plan_from(const json& value) {
  Plan plan{value.at("request"), {}};
  for (const json& file : value.at("files"))
    plan.files.push_back(planned_file_from(file));
  return plan;
}

FetchState state_from(const json& value) {
  FetchState state;
  state.file = value.at("file").get<size_t>();
  state.place = {value.at("row").get<int64_t>(), value.at("offset").get<uint64_t>()};
  state.done = value.at("done").get<bool>();
  state.splits[0] = split_from(value.at("train"), dataset::Split::kTrain);
  state.splits[1] = split_from(value.at("heldout"), dataset::Split::kHeldout);
  state.source_documents = value.at("source_documents").get<std::vector<int64_t>>();
  state.documents = value.at("documents").get<int64_t>();
  state.heldout_documents = value.at("heldout_documents").get<int64_t>();
  state.empty_documents = value.at("empty_documents").get<int64_t>();
  state.replaced_characters = value.at("replaced_characters").get<int64_t>();
  state.text_bytes = value.at("text_bytes").get<uint64_t>();
  return state;
}

} // namespace

int64_t SplitState::tokens() const {
  int64_t sum = open_tokens;
  for (const dataset::ShardRecord& shard : shards)
    sum += shard.tokens;
  return sum;
}

Status write_plan(const fs::path& folder, const Plan& plan) {
  json value = {{"version", kVersion}, {"request", plan.request}, {"files", json::array()}};
  for (const PlannedFile& file : plan.files)
    value["files"].push_back(to_json(file));
  return write_file_atomic(folder / kPlanFile, value.dump(1) + "\n");
}

Result<std::optional<Plan>> read_plan(const fs::path& folder) {
  return read<Plan>(folder / kPlanFile, plan_from);
}

Status write_state(const fs::path& folder, const FetchState& state) {
  const json value = {{"version", kVersion},
                      {"file", state.file},
                      {"row", state.place.row},
                      {"offset", state.place.offset},
                      {"done", state.done},
                      {"train", to_json(state.splits[0])},
                      {"heldout", to_json(state.splits[1])},
                      {"source_documents", state.source_documents},
                      {"documents", state.documents},
                      {"heldout_documents", state.heldout_documents},
                      {"empty_documents", state.empty_documents},
                      {"replaced_characters", state.replaced_characters},
                      {"text_bytes", state.text_bytes}};
  return write_file_atomic(folder / kStateFile, value.dump(1) + "\n");
}

Result<FetchState> read_state(const fs::path& folder) {
  NSA_TRY_ASSIGN(auto state, read<FetchState>(folder / kStateFile, state_from));
  return std::move(state).value_or(FetchState{});
}

void remove_progress(const fs::path& folder) {
  // Includes the temporary files of killed writers. A file that cannot be removed does no harm.
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kPlanFile) || name.starts_with(kStateFile) ||
        name.starts_with(dataset::kGenerationsFile))
      found.push_back(at->path());
  }
  for (const fs::path& path : found)
    fs::remove(path, error);
}

} // namespace nsa::fetch
