// A rank as seen from outside: its progress page, and what /proc says of its process.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/progress/page.h"

#include <cstdint>
#include <optional>

namespace nsa::state {

// It is read again only while the page does not change.
struct ProcessReading {
  char state = 'S';             // as in /proc/<pid>/stat
  int64_t tracer = 0;           // pid of the attached debugger; 0: none
  double cpu_seconds = 0;       // user + system time of the process
  double run_delay_seconds = 0; // time in which it was ready to run and had no CPU

  bool is_traced() const { return tracer != 0 || state == 't'; }
  bool is_stopped_by_signal() const { return state == 'T' && !is_traced(); }
};

struct RankSample {
  Rank rank = 0;
  int64_t pid = 0;
  bool exited = false;
  std::optional<progress::HostRecord> host; // nullopt before the rank's first record
  progress::DeviceRecord device;
  progress::CollectiveRing collectives; // the newest collectives
  ProcessReading process;
  WallTime moved_at; // when its page last changed

  bool has_moved_since(const RankSample& older) const {
    return host != older.host || device != older.device;
  }
  // Takes over a newer sample of the same rank. The collectives are most of a sample, and change
  // only if the rank has moved.
  void update(const RankSample& newer) {
    if (newer.has_moved_since(*this)) collectives = newer.collectives;
    rank = newer.rank;
    pid = newer.pid;
    exited = newer.exited;
    host = newer.host;
    device = newer.device;
    process = newer.process;
    moved_at = newer.moved_at;
  }
};

} // namespace nsa::state
