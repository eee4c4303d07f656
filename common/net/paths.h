// The paths of the daemon's state and socket. Both nsad and nsactl use it.
//
// In user mode the state is in $XDG_STATE_HOME/nsa (~/.local/state/nsa), and the socket is in
// $XDG_RUNTIME_DIR/nsa. If that folder vanishes at logout (/run/user/<uid> without lingering), the
// socket is beside the state, because runs outlive the login. System mode uses /var/lib/nsa and
// /run/nsa.
#pragma once

#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::net {

struct NodePaths {
  std::string state;  // folder of the ledger, the runs and nsad.log
  std::string socket; // where nsad listens
  std::string config; // nsad.toml; need not exist
  std::string log;    // nsad.log of a daemon started on demand
  // The sockets that nsactl tries, in order. With NSA_SOCKET it tries only that one; otherwise
  // `socket` and the other user-mode location. It never tries the system daemon's socket unless
  // that is named.
  std::vector<std::string> socket_candidates;
  bool named = false; // the socket is from NSA_SOCKET
};

// Reads the environment and, for lingering, the file system. Error: kInvalidArgument if neither
// HOME nor the XDG variable is set, or a variable has a relative path.
Result<NodePaths> user_paths();

// nsad calls it once it listens. It links the socket beside the state, so that a login without
// XDG_RUNTIME_DIR also finds the daemon.
Status publish_socket(const NodePaths& paths);

NodePaths system_paths();

} // namespace nsa::net
