// The ranks of a measuring program as processes: started together, watched, and ended together.
//
// The caller is their parent and does nothing else meanwhile. It has one thread, so that the
// ranks' parent-death signal means what it says: when the caller is killed, so are they. They are
// in process groups of their own: Ctrl-C reaches the caller alone, which then ends them.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::bench {

// The exit code of a rank that gave up because a peer was gone: a victim, not the cause.
inline constexpr int kPeerLostExit = 8;

struct RankProgram {
  int world = 1;
  std::vector<std::string> arguments;   // of every rank; [0] is the program's path
  std::vector<std::string> environment; // "NAME=value"; rank and rendezvous are added
  // How long the cause of a victim's end is waited for.
  Duration settling = std::chrono::seconds(2);
};

// Starts all ranks, passes on what rank 0 writes to standard output and standard error, and waits
// until all have ended with 0. When a rank ends in another way the others are killed, and the error
// names that rank, how it ended, and the last lines of its standard error. Afterwards no process
// and no file of theirs is left.
//
// Gives the signal (SIGINT, SIGTERM, SIGHUP) that ended all of it, or 0.
Result<int> run_ranks(const RankProgram& program);

} // namespace nsa::bench
