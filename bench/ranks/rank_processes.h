// Runs the ranks of a measuring program as processes: starts them together, watches them, and ends
// them together.
//
// The caller is their parent and does nothing else meanwhile. It must have one thread, because the
// ranks' parent-death signal is sent when the thread that started them ends. So if the caller is
// killed, the ranks are killed too. They have their own process groups, so Ctrl-C reaches only the
// caller, which then ends them.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::bench {

// Exit code of a rank that gave up because it lost a peer: a victim, not the cause.
inline constexpr int kPeerLostExit = 8;

struct RankProgram {
  int world = 1;
  std::vector<std::string> arguments;   // arguments of every rank; [0] is the program's path
  std::vector<std::string> environment; // "NAME=value"; rank and rendezvous are added
  // How long run_ranks() waits for the cause after a victim has ended.
  Duration settling = std::chrono::seconds(2);
};

// Starts all ranks, passes on the standard output and standard error of rank 0, and waits until all
// have exited with 0. If a rank ends otherwise, the others are killed. The error then names that
// rank, how it ended, and the last lines of its standard error. Afterwards none of their processes
// or files is left.
//
// Returns the signal (SIGINT, SIGTERM, SIGHUP) that ended the ranks, or 0.
Result<int> run_ranks(const RankProgram& program);

} // namespace nsa::bench
