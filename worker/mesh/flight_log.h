// FlightLog keeps the newest collectives of this rank and the state of each. Its JSON has the
// format of c10d's flight recorder (version 2.10: `entries` with collective_seq_id, profiling_name,
// state, ...), so the same tools read both. Callable from any thread, also while another thread
// hangs in a collective.
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

  // Returns the collective's number, from 1. `name` is for example "mesh:all_reduce", `what`
  // "gradient bucket 3 of step 12".
  uint64_t scheduled(std::string name, std::string what, size_t bytes);
  void started(uint64_t number);
  void ended(uint64_t number, bool well); // if not `well`, the state stays "started" and `error` is
                                          // set
  std::string json() const;

private:
  struct Entry {
    uint64_t number = 0;
    std::string name, what;
    size_t bytes = 0;
    WallTime created, started, ended; // 0: not reached yet
    bool failed = false;
  };
  Entry* find(uint64_t number); // null if it is no longer in the log

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Entry> entries_; // sorted by number, without gaps
  uint64_t last_ = 0;
};

} // namespace nsa::comm
