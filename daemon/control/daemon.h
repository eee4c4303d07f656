// The whole nsad: single-instance lock, ledger, control plane, sockets and signals. run_daemon()
// returns when a signal or a request ends it; ranks continue under their shims.
#pragma once

#include "common/base/result.h"
#include "common/net/paths.h"
#include "daemon/control/config.h"
#include "daemon/privilege/host.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::control {

// Settings of a node that is an agent of a head on another node.
struct JoinOptions {
  std::string head;       // "HOST:PORT"; empty if this nsad is no agent
  std::string token;      // empty if the node has joined before
  std::string name;       // empty selects the host's name, or the one under which it joined
  std::string run;        // run whose job this agent is part of; empty if none
  std::string token_file; // file of `token`; for a job the head writes new tokens there
};

struct DaemonOptions {
  std::shared_ptr<privilege::Host> host;
  int starter_socket = -1; // system mode; becomes readable when the starter exits
  net::NodePaths paths;
  spec::NodeSpec config;
  bool system_mode = false;
  JoinOptions join;
  std::string program;                // absolute path of nsad
  std::vector<std::string> arguments; // as given, so that shims can restart nsad with them
};

// Error: kConflict if another nsad uses this state folder.
Status run_daemon(const DaemonOptions& options);

} // namespace nsa::control
