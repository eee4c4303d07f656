// A run's folder on a node that does not see the head's: <state>/private/<run>. It holds the files
// that ranks read there: the checkpoint to resume from, or the one that the run begins with, and
// small files. Its path always differs from that of the head's folder, so a copy cannot be mistaken
// for a shared folder.
//
// The functions block. Only one call for a run at a time.
#pragma once

#include "common/transfer/receive.h"
#include "common/wire/launch_plan.h"
#include "daemon/parts/messages.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::parts {

std::string private_folder(const std::string& state, const RunId& run);

// Whether the node sees the run's folder, may write there, and can read the checkpoint. Fails with
// kCorrupt if it sees a damaged checkpoint.
Result<bool> sees_run_folder(const Preparation& wanted);

// Fetches the offered files. It deletes checkpoints that are no longer offered, and the folders of
// runs that are not open.
Result<transfer::Received>
fill_private_folder(const std::string& state, const RunId& run, const Preparation& wanted,
                    const std::vector<std::shared_ptr<transfer::Source>>& sources);

// Replaces the run's folder in the plan by this folder.
void use_private_folder(wire::LaunchPlan& plan, const std::string& folder);

// Replaces the value of an option of a rank's command line, if the command line has it.
void replace_value(std::vector<std::string>& arguments, const char* name, const std::string& value);

} // namespace nsa::parts
