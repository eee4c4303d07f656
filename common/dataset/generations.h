// A data set that is still being fetched: the part of it that a run may read already.
//
// A generation is a shard of the train split that is complete. `nsactl data fetch` records them in
// "<output>.fetching/generations.json": a manifest of all complete shards, written as a whole after
// a shard is on disk. It only grows, and where shards begin depends on the text alone, so that a
// fetch which was killed and continued records the same generations.
//
// The identity of a data set that is followed is the digest of its first generation: the first
// shards of both splits. It is known before the fetch has ended, and stays.
#pragma once

#include "common/base/file.h"
#include "common/dataset/dataset.h"
#include "common/dataset/manifest.h"
#include "common/spec/run_spec.h"

#include <filesystem>
#include <memory>

namespace nsa::dataset {

inline constexpr std::string_view kGenerationsFile = "generations.json";

// Where the fetch of `output` works: "<output>.fetching".
std::filesystem::path fetching_folder(const std::filesystem::path& output);

struct Arrived {
  std::filesystem::path folder; // where the shards are now
  Manifest manifest;            // of the shards that are complete, in reading order
  bool complete = false;        // all of it: the fetch has ended
};

// The data set in `output`, or what its fetch has recorded. kNotFound says what to wait for.
Result<Arrived> read_arrived(const std::filesystem::path& output,
                             const FileOpener& open = open_regular_file);

// What a run with data.follow reads: of the held-out split the first shard, of the train split the
// first `shards`; with the digest of that. kNotFound when there are fewer, or no held-out shard yet
// although the preparation sets text aside.
Result<Manifest> generations(const Arrived& arrived, size_t shards);
size_t count_generations(const Manifest& manifest);

Status write_generations(const std::filesystem::path& folder, const Manifest& manifest);

// Opens all generations that are there. `before`, an older state of the same data set, spares the
// checks of what it has; kConflict when one of its shards is another now.
Result<std::shared_ptr<const Dataset>> open_arrived(const std::filesystem::path& output,
                                                    Check check, const Dataset* before = nullptr);

// Whether a process makes `output` right now: it holds the lock on the folder.
bool is_fetched_now(const std::filesystem::path& output);

// The manifest of one of a run's data sets; of one that is followed its first generation's.
Result<Manifest> read_source(const spec::DataSource& source,
                             const FileOpener& open = open_regular_file);
// Where its files are now.
std::filesystem::path folder_of(const spec::DataSource& source);

} // namespace nsa::dataset
