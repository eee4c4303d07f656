// What lies in a run's folder, which its ranks own: checkpoints and the summary of an ended run.
// Blocking, and gigabytes where files are verified: never on the loop's thread. No state; any
// thread.
#pragma once

#include "common/wire/api_types.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nsa::control {

// The ledger's rows, held against what lies on the disk: manifests are the truth about checkpoints.
// `verify`: every byte is read. Newest first.
std::vector<wire::CheckpointView> checkpoints_on_disk(std::vector<wire::CheckpointView> rows,
                                                      const RunId& run, const std::string& folder,
                                                      bool verify);

// What an ended run took, of its summary.json; null where that cannot be read.
nlohmann::json read_came(const std::string& folder);

} // namespace nsa::control
