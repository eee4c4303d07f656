// Prepares an attempt's folder and starts its shim. Blocking for milliseconds; the loop's thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/wire/launch_plan.h"
#include "daemon/control/config.h"
#include "daemon/control/run_record.h"
#include "daemon/shim/client.h"

#include <map>
#include <string>

namespace nsa::control {

struct PreparedAttempt {
  wire::LaunchPlan plan;
  UniqueFd store_socket; // bound and listening: rank 0's store inherits it
};

struct LauncherOptions {
  spec::NodeSpec config;
  std::string program_folder;              // of nsad: nsa-worker and nsa-shim lie beside it
  std::vector<std::string> restart_daemon; // command line of nsad; empty: shims do not start it
};

class Launcher {
public:
  explicit Launcher(LauncherOptions options) : options_(std::move(options)) {}

  // Makes <run>/attempts/<n>/ with spec.json and binds the rendezvous port. kNotFound: no worker
  // program (trying again cannot help). kExhausted: the disk is full.
  Result<PreparedAttempt> prepare(const state::Run& run, const RunRecord& record) const;

  // Starts the shim, or finds the one that an nsad before us had started for this very attempt.
  Result<shim::StartedShim> start(PreparedAttempt prepared) const;

  // The programs that an attempt consists of: name -> file.
  std::map<std::string, std::string> programs() const;

private:
  std::string worker() const;
  LauncherOptions options_;
};

} // namespace nsa::control
