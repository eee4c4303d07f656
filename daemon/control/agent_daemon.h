// nsad as an agent of a head on another node. It joins once and keeps its link to the head. It has
// no ledger, and answers users only about itself. It returns when a signal or a request ends it, or
// when the head refuses it permanently.
#pragma once

#include "daemon/control/daemon.h"

namespace nsa::control {

// The error is kInvalidArgument if this node has not joined and has no token. It is kPermission if
// the head refuses the node permanently, and kConflict if another nsad uses this state folder.
Status run_agent(const DaemonOptions& options);

// Error: kConflict if the state folder belongs to an agent. A standalone nsad there would hide the
// agent from its head.
Status refuse_folder_of_agent(const std::string& state_folder);

} // namespace nsa::control
