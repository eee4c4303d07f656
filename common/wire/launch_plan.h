// What nsad hands a shim: everything needed to start the ranks of one attempt on this node. Written
// to <attempt folder>/launch.json before the shim is started, read once by the shim.
#pragma once

#include "common/base/ids.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nsa::wire {

// File descriptors that a rank inherits. The shim makes 3 and 4; 5 is handed down from nsad.
inline constexpr int kRankLinkFd = 3;  // stream socket to the shim, frames both ways
inline constexpr int kRankPageFd = 4;  // progress page (memfd)
inline constexpr int kRankStoreFd = 5; // rank 0 only: the listening socket of the rendezvous store

// In the run's folder, the submitter's, mode 0600: a JSON object of the variables that
// run.pass_environment names. Their values are written nowhere else.
inline constexpr const char* kPassedEnvironmentName = "passed-environment.json";

struct RankLaunch {
  Rank rank = 0;
  std::vector<std::string> arguments; // argv; [0] is the program's absolute path
  std::map<std::string, std::string>
      environment; // the whole environment, nothing else is inherited
  std::string working_folder;
  std::string log_path; // CRI log format lines; rotated as <path>.1 (newest) ... <path>.N
};

struct LaunchPlan {
  RunId run_id;
  AttemptNumber attempt = 1;
  std::string token; // secret of this attempt: proves identity between nsad and shim
  std::string run_folder;
  std::string attempt_folder; // holds shim.sock, launch.json, started.json, exit-<rank>.json, logs/
  std::vector<RankLaunch> ranks;
  // Names of variables whose values the shim takes from <run folder>/passed-environment.json.
  std::vector<std::string> passed_environment;
  int store_port = 0; // 127.0.0.1:<port>; the shim inherits its listening socket as descriptor 3
  uint64_t log_max_bytes = 64ull << 20; // a file, before rotation
  int log_files = 4;                    // kept a rank, the live one included
  // User mode, where no service manager does it: how the shim starts nsad again when it goes away
  // without having said so. Empty: it does not.
  std::vector<std::string> restart_daemon;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankLaunch, rank, arguments, environment,
                                                working_folder, log_path)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LaunchPlan, run_id, attempt, token, run_folder,
                                                attempt_folder, ranks, passed_environment,
                                                store_port, log_max_bytes, log_files,
                                                restart_daemon)

} // namespace nsa::wire
