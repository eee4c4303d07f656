// What nsad passes to a shim: everything to start the ranks of one attempt on this node. nsad
// writes it to <attempt folder>/launch.json before it starts the shim, which reads it once.
#pragma once

#include "common/base/choice_or_text.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/wire/exit_code.h"
#include "common/wire/json_members.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nsa::wire {

// File descriptors that the shim makes and a rank inherits.
inline constexpr int kRankLinkFd = 3;  // stream socket to the shim, frames both ways
inline constexpr int kRankPageFd = 4;  // progress page (memfd)
inline constexpr int kRankStoreFd = 5; // rank 0 only: the listening socket of the rendezvous store

// File in the run's folder, owned by the submitter, mode 0600: a JSON object of the variables that
// run.pass_environment names. Their values are written nowhere else.
inline constexpr const char* kPassedEnvironmentName = "passed-environment.json";

// Environment variables of every rank and its child processes. Their values are derived from the
// attempt's token. Ranks that meet over TCP present the attempt's mark to each other. The part's
// mark finds processes that a lost shim left behind. The attempt's mark would also find ranks of
// another node on the same host.
inline constexpr const char* kAttemptMark = "NSAD_ATTEMPT";
inline constexpr const char* kPartMark = "NSAD_PART";

// Socket in the rendezvous folder. The shim makes it, so that it exists before any rank.
inline constexpr const char* kStoreSocketName = "store.sock";

struct RankLaunch {
  Rank rank = 0;
  std::vector<std::string> arguments; // argv; [0] is the program's absolute path
  std::map<std::string, std::string>
      environment; // the complete environment; nothing else is inherited
  std::string working_folder;
  std::string log_path; // CRI log format lines; rotated as <path>.1 (newest) ... <path>.N
};

// How much a rank may send and log; a burst may use a minute's worth. 0: no limit.
struct RankQuotas {
  double events_per_second = 10, steps_per_second = 100;
  double log_bytes_per_second = 4 << 20;
};

// Limits of all processes of the attempt together, if a cgroup is available. 0: no limit.
struct AttemptLimits {
  uint64_t processes = 0; // including threads
  uint64_t memory_bytes = 0;
};

struct LaunchPlan {
  RunId run_id;
  AttemptNumber attempt = 1;
  std::string token; // secret of this attempt, which authenticates nsad and shim to each other
  std::string run_folder;
  std::string attempt_folder; // contains shim.sock, launch.json, started.json, exit-<rank>.json,
                              // logs/
  std::vector<RankLaunch> ranks;
  // Names of variables whose values the shim reads from <run folder>/passed-environment.json.
  std::vector<std::string> passed_environment;
  // Where the ranks meet. On one node it is "unix:<attempt folder>/rendezvous", and the shim of
  // rank 0 makes the store's socket; empty if there is one rank. On several nodes it is
  // "tcp:HOST:PORT", and the shim of rank 0 gets the listening socket.
  std::string rendezvous;
  // On several nodes: ranks end if no nsad has contacted them for this long, because another
  // attempt may have been started without them. 0: they continue.
  double orphan_seconds = 0;
  uint64_t log_max_bytes = 64ull << 20; // size of a file before rotation
  int log_files = 4;                    // files for each rank, including the current one
  RankQuotas quotas;
  AttemptLimits limits;
  // For an nsad that lost its ledger and learns of the attempt from this file.
  std::vector<std::string> slots;       // one for each rank: GPU UUIDs, or names of CPU slots
  std::vector<std::string> spare_slots; // further slots that the run keeps on a rung of its ladder
  nlohmann::json run_spec;              // spec at the top of the ladder; null: the attempt's spec
  std::vector<int> rungs;               // active rungs of the ladder
  ChoiceOrText<FailureClass>
      rung_taken_after;    // class of failure that took the newest rung; empty: none
  uint64_t first_step = 0; // step of the checkpoint that the ranks resume from; 0: none
  std::string checkpoint_folder;
  // In user mode, without a service manager: how the shim starts nsad again if nsad ends without
  // DaemonGoodbye. Empty: it does not.
  std::vector<std::string> restart_daemon;
};

NSA_DECLARE_JSON(RankLaunch);
NSA_DECLARE_JSON(RankQuotas);
NSA_DECLARE_JSON(AttemptLimits);
NSA_DECLARE_JSON(LaunchPlan);

} // namespace nsa::wire
