// nsad as an agent of a head on another node: it joins once, keeps its link, and is heard. It has
// no ledger, and answers users only about itself. It returns when a signal or a request ends it,
// or when the head will not have it any more.
#pragma once

#include "daemon/control/daemon.h"

namespace nsa::control {

// kInvalidArgument: it has not joined, and has no token. kPermission: the head refuses this node,
// and starting again cannot help. kConflict: this state folder is another nsad's.
Status run_agent(const DaemonOptions& options);

// kConflict where the state folder is an agent's: a nsad of its own would hide it from its head.
Status refuse_folder_of_agent(const std::string& state_folder);

} // namespace nsa::control
