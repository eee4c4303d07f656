// The whole nsad: single-instance lock, ledger, control plane, sockets, signals. run() returns when
// a signal or a request ends it; ranks continue under their shims.
#pragma once

#include "common/base/result.h"
#include "common/net/paths.h"
#include "daemon/control/config.h"
#include "daemon/privilege/host.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::control {

// Of a node that is to be an agent of a head elsewhere.
struct JoinOptions {
  std::string head;       // "HOST:PORT"; empty: this nsad decides for itself
  std::string token;      // empty: it has joined before
  std::string name;       // empty: the host's, or the one that it has joined by
  std::string run;        // whose job it is part of; empty: none
  std::string token_file; // where `token` was read; the head replaces those of a job
};

struct DaemonOptions {
  std::shared_ptr<privilege::Host> host;
  int starter_socket = -1; // system mode: readable once the starter has gone
  net::NodePaths paths;
  spec::NodeSpec config;
  bool system_mode = false;
  JoinOptions join;
  std::string program;                // absolute path of nsad
  std::vector<std::string> arguments; // as given: shims start nsad again with them
};

// kConflict: another nsad has this state folder.
Status run_daemon(const DaemonOptions& options);

} // namespace nsa::control
