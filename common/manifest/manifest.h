// Checkpoint manifests: manifest.json in a checkpoint folder is authoritative for the checkpoint;
// ledger rows can be rebuilt from it. The worker writes it last, inside step-<n>.tmp, before the
// rename to step-<n>. So a folder without the .tmp suffix has a manifest. Its files match the
// manifest, or they are damaged.
//
// Blocking file I/O without locks. Several processes may call it, because a checkpoint never
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
  std::string name; // within the folder, without separators
  uint64_t bytes = 0;
  std::string checksum; // XXH3-128, 32 hex digits
};

// A data set of a mixture.
struct DataSource {
  std::string digest;
  int64_t weight = 1; // smallest integers in the proportions of the mixture
};

// Position in the data order; exact for any number of ranks.
struct DataState {
  uint64_t seed = 0, epoch = 0;         // a mixture has epoch 0
  uint64_t index = 0;                   // sequences read in the epoch; in total for a mixture
  int64_t sequence_length = 0;          // length of the sequences
  std::string dataset_digest;           // one digest of all sources
  std::vector<DataSource> sources = {}; // empty if there is one data set
  // With data.follow: the number of generations that were read (common/dataset/generations.h), and
  // the digest of their shards. Otherwise 0 and empty.
  uint64_t generations = 0;
  std::string generations_digest = {};
};

struct Manifest {
  int format = 1;
  std::string run_id;
  int attempt = 0;
  uint64_t step = 0;   // completed optimizer updates
  uint64_t tokens = 0; // number of tokens trained on
  int world_size = 0;
  int threads = 0;       // CPU threads of a rank
  std::string device;    // for example "cpu", "NVIDIA H200"
  std::string precision; // "master", "fp32"
  std::string compute;   // "bf16", "fp32"
  bool deterministic = false;
  bool shard_update = false; // each of several ranks updated a shard; false if the field is missing
  bool finite = true;        // the last loss and gradient norm were finite
  double loss = 0;           // last training loss
  DataState data;
  std::map<std::string, std::string> toggles;
  std::string spec_digest;
  std::string build;                           // build of nsa-worker
  std::map<std::string, std::string> versions; // libtorch, nccl, ...
  std::string written_at;                      // RFC 3339
  std::vector<File> files;
};

nlohmann::json to_json(const Manifest& manifest);
Result<Manifest> from_json(const nlohmann::json& json);

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kWeightsName = "model.safetensors"; // the other file has the optimizer
                                                                 // state
std::string folder_name(uint64_t step);                          // "step-00000120"
std::optional<uint64_t> step_of_folder(const std::string& name);

// Reads and checks the manifest itself. Errors: kNotFound, kCorrupt.
Result<Manifest> read(const std::filesystem::path& checkpoint_folder);

// Checks that every file exists with the right size and checksum. Error: kCorrupt names the first
// bad file and the reason.
Status verify(const std::filesystem::path& checkpoint_folder, const Manifest& manifest);

struct Found {
  std::filesystem::path folder;
  uint64_t step = 0;
  std::optional<Manifest> manifest; // unset if it cannot be read
  int64_t written_at = 0;           // modification time of the folder in nanoseconds
  std::string problem;              // why it is not usable; empty if it is
};

// Returns all checkpoints below <run>/checkpoints, newest first. It verifies them only with
// `verify_files`.
std::vector<Found> list(const std::filesystem::path& checkpoints_folder, bool verify_files);

// Checkpoints of `attempt` at `step` or later are complete, but a run must not resume from them.
struct Distrust {
  int attempt = 0;
  uint64_t step = 0;
  std::string why; // a clause
};

struct Choice {
  std::optional<Found> chosen; // newest one that verifies; unset if none does
  std::vector<Found> rejected; // newer ones that were rejected, with the reason
};
Choice choose_newest_verified(const std::filesystem::path& checkpoints_folder,
                              const std::vector<Distrust>& distrusted = {});

// Renames the folders that were rejected as distrusted to "<name>.distrusted". So ranks that search
// a checkpoint (roll-back) do not see them, and retention counts them separately. Call it only
// while no rank is alive.
void set_aside(Choice& choice, const std::vector<Distrust>& distrusted);
// Returns those folders by step; at most one for each step.
std::map<uint64_t, std::filesystem::path>
list_set_aside(const std::filesystem::path& checkpoints_folder);

// Makes `folder` a checkpoint of the same files. It uses hard links if the file system has them, so
// `folder` stays when the original is deleted. The result is verified; on failure nothing is left.
// Without the optimizer, the manifest still names its file.
Status link_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                       bool with_optimizer);
// Returns the manifest of such a folder without the optimizer's file, for verify() and readers.
Manifest weights_alone(Manifest manifest);

// Retention: returns the steps that may be deleted, given all existing ones. It keeps the last
// `keep_last`, every multiple of `keep_every_steps`, and the newest verified finite one. It never
// deletes the only good one.
struct Kept {
  uint64_t step = 0;
  bool verified = false, finite = false;
};
// Returns the step of the `keep_last`-th newest verified checkpoint (the newest if keep_last is
// less than 1); 0 if there are fewer. Older ones that are damaged or set aside are not needed.
uint64_t oldest_of_the_last(std::vector<Kept> present, int keep_last);
std::vector<uint64_t> steps_to_delete(std::vector<Kept> present, int keep_last,
                                      uint64_t keep_every_steps);

} // namespace nsa::manifest
