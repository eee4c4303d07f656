// Where the daemon keeps its state and where it listens. nsad and nsactl both ask here.
//
// User mode: the state is in $XDG_STATE_HOME/nsa (~/.local/state/nsa), the socket in
// $XDG_RUNTIME_DIR/nsa. If that folder vanishes at logout (/run/user/<uid> without lingering), the
// socket is beside the state, because runs outlive the login. System mode: /var/lib/nsa and
// /run/nsa.
#pragma once

#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::net {

struct NodePaths {
  std::string state;  // folder of ledger, runs, nsad.log
  std::string socket; // where nsad listens
  std::string config; // nsad.toml; need not exist
  std::string log;    // nsad.log of a daemon that was started on demand
  // Where nsactl looks, in order: NSA_SOCKET alone if set; else `socket` and the other place in
  // user mode. Never the system daemon's: that one is asked only by name.
  std::vector<std::string> socket_candidates;
  bool named = false; // the socket is NSA_SOCKET's
};

// Reads the environment and, for the lingering rule, the file system. kInvalidArgument when there
// is no HOME and no XDG variable to go by, or a variable holds a relative path.
Result<NodePaths> user_paths();

// For nsad, once it listens: a link beside the state to a socket elsewhere, so that a login without
// XDG_RUNTIME_DIR finds the daemon too.
Status publish_socket(const NodePaths& paths);

NodePaths system_paths();

} // namespace nsa::net
