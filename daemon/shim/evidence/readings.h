// The first half of evidence: what /proc says about a rank and its threads, read twice some time
// apart. Needs no ptrace, and works on stopped, dead and uninterruptible processes alike.
#pragma once

#include "common/wire/messages.h"

#include <vector>

namespace nsa::shim::evidence {

struct Target {
  Rank rank = 0;
  pid_t pid = -1;
  uint64_t start_time_ticks = 0; // the pid may be another's by now
};

// The first reading: process and threads, in the order main thread, then by thread id.
wire::RankEvidence read_first(const Target& target);
// The second: fills in the *_second counters, and states as they are now.
void read_second(const Target& target, wire::RankEvidence& evidence);

} // namespace nsa::shim::evidence
