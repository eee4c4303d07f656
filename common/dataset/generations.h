// A data set that is still being fetched: the part of it that a run can already read.
//
// A generation is a complete shard of the train split. `nsactl data fetch` records generations in
// "<output>.fetching/generations.json": a manifest of all complete shards, rewritten atomically
// after each shard is on disk. It only grows, and shard boundaries depend on the text alone. So a
// fetch that was killed and continued records the same generations.
//
// The identity of a followed data set is the digest of its first generation: the first shards of
// both splits. It is known before the fetch ends, and does not change.
#pragma once

#include "common/base/file.h"
#include "common/dataset/dataset.h"
#include "common/dataset/manifest.h"
#include "common/spec/run_spec.h"

#include <filesystem>
#include <memory>

namespace nsa::dataset {

inline constexpr std::string_view kGenerationsFile = "generations.json";

// Returns the working folder of a fetch of `output`: "<output>.fetching".
std::filesystem::path fetching_folder(const std::filesystem::path& output);

struct Arrived {
  std::filesystem::path folder; // current folder of the shards
  Manifest manifest;            // lists the complete shards, in reading order
  bool complete = false;        // the fetch has ended
};

// Returns the data set in `output`, or the shards that its fetch has recorded. Error: kNotFound
// says what to wait for.
Result<Arrived> read_arrived(const std::filesystem::path& output,
                             const FileOpener& open = open_regular_file);

// Returns the part that a run with data.follow reads, with its digest: the first held-out shard and
// the first `shards` train shards. Error: kNotFound if there are fewer, or if the held-out shard
// that the preparation makes does not exist yet.
Result<Manifest> generations(const Arrived& arrived, size_t shards);
size_t count_generations(const Manifest& manifest);

Status write_generations(const std::filesystem::path& folder, const Manifest& manifest);

// Opens all existing generations. Shards of `before`, an older state of the same data set, are not
// checked again. Error: kConflict if one of them has changed.
Result<std::shared_ptr<const Dataset>> open_arrived(const std::filesystem::path& output,
                                                    Check check, const Dataset* before = nullptr);

// Returns whether a process is making `output` now, which holds the lock on the folder.
bool is_fetched_now(const std::filesystem::path& output);

// Returns the manifest of one of a run's data sets; for a followed one, that of its first
// generation.
Result<Manifest> read_source(const spec::DataSource& source,
                             const FileOpener& open = open_regular_file);
// Returns the current folder of its files.
std::filesystem::path folder_of(const spec::DataSource& source);

} // namespace nsa::dataset
