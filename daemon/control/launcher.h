// What an attempt is started with: the launch plan and its spec. The start
// itself is the host's (privilege::Host::start_attempt). Non-blocking; the loop's thread.
#pragma once

#include "common/base/result.h"
#include "daemon/control/config.h"
#include "daemon/control/run_record.h"
#include "daemon/privilege/host.h"

#include <map>
#include <string>

namespace nsa::control {

struct LauncherOptions {
  spec::NodeSpec config;
  std::string program_folder;              // of nsad: nsa-worker and nsa-shim lie beside it
  std::vector<std::string> restart_daemon; // command line of nsad; empty: shims do not start it
};

class Launcher {
public:
  explicit Launcher(LauncherOptions options) : options_(std::move(options)) {}

  // kNotFound: no worker program (trying again cannot help).
  Result<privilege::AttemptStart>
  prepare(const state::Run& run, const RunRecord& record,
          std::map<std::string, std::string> node_environment) const;

  // The programs that an attempt consists of: name -> file.
  std::map<std::string, std::string> programs() const;

private:
  std::string worker() const;
  LauncherOptions options_;
};

} // namespace nsa::control
