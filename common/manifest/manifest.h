// Checkpoint manifests: manifest.json in a checkpoint folder is the truth about a checkpoint;
// ledger rows can be rebuilt from it. Written by the worker last, inside step-<n>.tmp, before the
// rename to step-<n>; so a folder without the .tmp suffix has a manifest, and files that match it
// or are damaged.
//
// Blocking file I/O; no locks; safe to call from several processes, since a checkpoint never
// changes.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nsa::manifest {

struct File {
  std::string name; // within the folder, no separators
  uint64_t bytes = 0;
  std::string checksum; // XXH3-128, 32 hex digits
};

// A data set of a mixture.
struct DataSource {
  std::string digest;
  int64_t weight = 1; // with the others the smallest integers of these proportions
};

// Where the data order stands; exact on any number of ranks.
struct DataState {
  uint64_t seed = 0, epoch = 0;         // of a mixture the epoch is 0
  uint64_t index = 0;                   // sequences read in the epoch; of a mixture in all
  int64_t sequence_length = 0;          // what the text was cut into
  std::string dataset_digest;           // of all sources together
  std::vector<DataSource> sources = {}; // empty: one data set
  // With data.follow: generations of shards that were read (common/dataset/generations.h), and the
  // digest of these shards. Without: 0.
  uint64_t generations = 0;
  std::string generations_digest = {};
};

struct Manifest {
  int format = 1;
  std::string run_id;
  int attempt = 0;
  uint64_t step = 0;   // completed optimizer updates
  uint64_t tokens = 0; // trained on so far
  int world_size = 0;
  int threads = 0;       // CPU threads a rank
  std::string device;    // "cpu", "NVIDIA H200"
  std::string precision; // "master", "fp32"
  std::string compute;   // "bf16", "fp32"
  bool deterministic = false;
  bool shard_update = false; // each of several ranks updated a shard; those of builds without: no
  bool finite = true;        // the last loss and gradient norm before it were finite
  double loss = 0;           // last training loss
  DataState data;
  std::map<std::string, std::string> toggles;
  std::string spec_digest;
  std::string build;                           // of nsa-worker
  std::map<std::string, std::string> versions; // libtorch, nccl, ...
  std::string written_at;                      // RFC 3339
  std::vector<File> files;
};

nlohmann::json to_json(const Manifest& manifest);
Result<Manifest> from_json(const nlohmann::json& json);

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kWeightsName = "model.safetensors"; // the other file: the optimizer's
std::string folder_name(uint64_t step);                          // "step-00000120"
std::optional<uint64_t> step_of_folder(const std::string& name);

// Reads and checks the manifest itself; kNotFound or kCorrupt.
Result<Manifest> read(const std::filesystem::path& checkpoint_folder);

// Every file present, of the right size and checksum. kCorrupt names the first bad file and how.
Status verify(const std::filesystem::path& checkpoint_folder, const Manifest& manifest);

struct Found {
  std::filesystem::path folder;
  uint64_t step = 0;
  std::optional<Manifest> manifest; // absent when it cannot be read
  int64_t written_at = 0;           // nanoseconds, of its folder
  std::string problem;              // why it is not usable; empty when it is
};

// All checkpoints below <run>/checkpoints, newest first, unverified unless `verify_files`.
std::vector<Found> list(const std::filesystem::path& checkpoints_folder, bool verify_files);

// Checkpoints that `attempt` wrote at `step` or later are whole, and still nothing to go on from.
struct Distrust {
  int attempt = 0;
  uint64_t step = 0;
  std::string why; // a clause
};

struct Choice {
  std::optional<Found> chosen; // newest that verifies; nothing when none does
  std::vector<Found> rejected; // newer ones that were passed over, with their problem
};
Choice choose_newest_verified(const std::filesystem::path& checkpoints_folder,
                              const std::vector<Distrust>& distrusted = {});

// Renames the folders that were rejected for a distrust to "<name>.distrusted": ranks that look for
// a checkpoint themselves (roll-back) do not see them, and retention counts them apart. Only while
// no rank lives.
void set_aside(Choice& choice, const std::vector<Distrust>& distrusted);
// Those folders, by their steps; at most one a step.
std::map<uint64_t, std::filesystem::path>
list_set_aside(const std::filesystem::path& checkpoints_folder);

// Makes `folder` a checkpoint of the same files: other names of theirs where the file system has
// links, so that it stays when the first one is deleted. Verified, whole or not there at all.
// Without the optimizer, the manifest still names its file.
Status link_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                       bool with_optimizer);
// The same checkpoint as verify() and readers of such a folder want it.
Manifest weights_alone(Manifest manifest);

// Retention: which steps may be deleted, given all present ones. Keeps the last `keep_last`, every
// multiple of `keep_every_steps`, and the newest verified-finite one; never deletes the only good
// one.
struct Kept {
  uint64_t step = 0;
  bool verified = false, finite = false;
};
// Step of the `keep_last`-th newest verified one (of the newest, should keep_last be less than 1);
// 0 while there are fewer. What is older and no good, damaged or set aside, is not missed.
uint64_t oldest_of_the_last(std::vector<Kept> present, int keep_last);
std::vector<uint64_t> steps_to_delete(std::vector<Kept> present, int keep_last,
                                      uint64_t keep_every_steps);

} // namespace nsa::manifest
