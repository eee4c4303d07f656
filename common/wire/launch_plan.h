// What nsad hands a shim: everything needed to start the ranks of one attempt on this node. Written
// to <attempt folder>/launch.json before the shim is started, read once by the shim.
#pragma once

#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/wire/json_members.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nsa::wire {

// File descriptors that a rank inherits, made by the shim.
inline constexpr int kRankLinkFd = 3;  // stream socket to the shim, frames both ways
inline constexpr int kRankPageFd = 4;  // progress page (memfd)
inline constexpr int kRankStoreFd = 5; // rank 0 only: the listening socket of the rendezvous store

// In the run's folder, the submitter's, mode 0600: a JSON object of the variables that
// run.pass_environment names. Their values are written nowhere else.
inline constexpr const char* kPassedEnvironmentName = "passed-environment.json";

// In the environment of every rank and of what it starts. Values follow from the attempt's token.
// Ranks that meet over TCP show the attempt's mark to each other. The part's mark finds what a lost
// shim left behind: the attempt's would also find the ranks of another node on the same host.
inline constexpr const char* kAttemptMark = "NSAD_ATTEMPT";
inline constexpr const char* kPartMark = "NSAD_PART";

// In the folder of the rendezvous. The shim makes it, so that it is there before any rank.
inline constexpr const char* kStoreSocketName = "store.sock";

struct RankLaunch {
  Rank rank = 0;
  std::vector<std::string> arguments; // argv; [0] is the program's absolute path
  std::map<std::string, std::string>
      environment; // the whole environment, nothing else is inherited
  std::string working_folder;
  std::string log_path; // CRI log format lines; rotated as <path>.1 (newest) ... <path>.N
};

// What one rank may say and log a second; a minute's worth may come at once. 0: no limit.
struct RankQuotas {
  double events_per_second = 10, steps_per_second = 100;
  double log_bytes_per_second = 4 << 20;
};

// Of all processes of the attempt together, where a cgroup is at hand. 0: no limit.
struct AttemptLimits {
  uint64_t processes = 0; // threads included
  uint64_t memory_bytes = 0;
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
  // How the ranks meet: "unix:<attempt folder>/rendezvous", whose store socket the shim of rank 0
  // makes; empty where there is one rank. On several nodes "tcp:HOST:PORT"; the shim of rank 0 is
  // then handed the listening socket.
  std::string rendezvous;
  // On several nodes: ranks that no nsad has asked for this long are ended, since another attempt
  // may have been started without them. 0: they go on.
  double orphan_seconds = 0;
  uint64_t log_max_bytes = 64ull << 20; // a file, before rotation
  int log_files = 4;                    // kept a rank, the live one included
  RankQuotas quotas;
  AttemptLimits limits;
  // For an nsad that has lost its ledger and learns of the attempt from this file.
  std::vector<std::string> slots;       // one a rank: GPU UUIDs, or names of CPU slots
  std::vector<std::string> spare_slots; // that the run holds beside them, on a rung of its ladder
  nlohmann::json run_spec; // at the top of the ladder; null: the attempt's own spec is that one
  std::vector<int> rungs;  // of the ladder, in effect
  std::string rung_taken_after; // the class of failure that took the newest; empty: none did
  uint64_t first_step = 0;      // of the checkpoint that the ranks resume from; 0: from scratch
  std::string checkpoint_folder;
  // User mode, where no service manager does it: how the shim starts nsad again when it goes away
  // without having said so. Empty: it does not.
  std::vector<std::string> restart_daemon;
};

NSA_DECLARE_JSON(RankLaunch);
NSA_DECLARE_JSON(RankQuotas);
NSA_DECLARE_JSON(AttemptLimits);
NSA_DECLARE_JSON(LaunchPlan);

} // namespace nsa::wire
