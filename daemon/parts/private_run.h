// A run's folder on a node that does not see the head's: <state>/private/<run>. It holds what ranks
// read there: the checkpoint to resume from, or the one that the run begins from, and small files.
// It never lies under the path of the head's folder, so a copy is not taken for a shared folder.
//
// Blocking; one call for a run at a time.
#pragma once

#include "common/transfer/receive.h"
#include "common/wire/launch_plan.h"
#include "daemon/parts/messages.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::parts {

std::string private_folder(const std::string& state, const RunId& run);

// Whether the node sees the run's folder, may write there, and can read the checkpoint. kCorrupt:
// it sees a checkpoint that is damaged.
Result<bool> sees_run_folder(const Preparation& wanted);

// Fetches what is offered, and deletes checkpoints that are not offered any more as well as the
// folders of runs that are over.
Result<transfer::Received>
fill_private_folder(const std::string& state, const RunId& run, const Preparation& wanted,
                    const std::vector<std::shared_ptr<transfer::Source>>& sources);

// The plan with this folder in place of the run's.
void use_private_folder(wire::LaunchPlan& plan, const std::string& folder);

// Gives an option of a rank's command line another value, where it is there.
void replace_value(std::vector<std::string>& arguments, const char* name, const std::string& value);

} // namespace nsa::parts
