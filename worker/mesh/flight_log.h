// The newest collectives of this rank and how far each has come, told in the format of c10d's
// flight recorder (version 2.10: `entries` with collective_seq_id, profiling_name, state, ...), so
// that the same readers take both. Any thread may call it, also while another one hangs in a
// collective.
#pragma once

#include "common/base/clock.h"

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace nsa::comm {

class FlightLog {
public:
  explicit FlightLog(size_t capacity = 2000) : capacity_(capacity) {}

  // `name`: "mesh:all_reduce"; `what`: which one it is, "gradient bucket 3 of step 12".
  uint64_t scheduled(std::string name, std::string what, size_t bytes); // its number, from 1
  void started(uint64_t number);
  void ended(uint64_t number, bool well); // badly: it stays "started", and `error` says so
  std::string json() const;

private:
  struct Entry {
    uint64_t number = 0;
    std::string name, what;
    size_t bytes = 0;
    WallTime created, started, ended; // 0: not yet
    bool failed = false;
  };
  Entry* find(uint64_t number); // nothing when it has left the log

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Entry> entries_; // by number, without gaps
  uint64_t last_ = 0;
};

} // namespace nsa::comm
