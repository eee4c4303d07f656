// The first half of evidence: what /proc says about a rank and its threads, read twice with a pause
// in between. It needs no ptrace, and works on stopped, dead and uninterruptible processes alike.
#pragma once

#include "common/wire/messages.h"

#include <vector>

namespace nsa::shim::evidence {

struct Target {
  Rank rank = 0;
  pid_t pid = -1;
  uint64_t start_time_ticks = 0; // identifies the process, since the pid may have been reused
};

// The first reading: the process, and its threads by thread id, the main thread first.
wire::RankEvidence read_first(const Target& target);
// The second reading: fills in the *_second counters, and updates the states.
void read_second(const Target& target, wire::RankEvidence& evidence);

} // namespace nsa::shim::evidence
