// Files of a run's folder that its ranks own: checkpoints, and the summary of an ended run. No
// state; any thread may call them. read_...() block: never call them on the loop's thread.
#pragma once

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/manifest/manifest.h"
#include "daemon/store/rows.h"

#include <string>
#include <vector>

namespace nsa::control {

// Merges the ledger's rows with the checkpoints on disk. Where they differ, the manifests are
// right. `verified`: every byte of the checkpoints on disk was read. Newest first.
std::vector<store::CheckpointRow> checkpoints_on_disk(std::vector<store::CheckpointRow> rows,
                                                      const RunId& run,
                                                      const std::vector<manifest::Found>& on_disk,
                                                      bool verified);

// What an ended run really took (memory, disk, time): "came" of its summary.json. Null if the file
// is missing; {"damaged": why} if it cannot be read.
nlohmann::json read_came(const std::string& folder, const FileOpener& open = open_regular_file);

// The resolved run file of an attempt.
Result<nlohmann::json> read_attempt_spec(const std::string& attempt_folder, const FileOpener& open);

} // namespace nsa::control
