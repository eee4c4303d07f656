// The fake all-reduce: a file in the attempt folder that all ranks map, with one counter a step.
// Like the real one it completes when every rank has come, and carries the wish to stop, so that
// all ranks leave after the same step.
#pragma once

#include "common/base/result.h"

#include <atomic>
#include <cstdint>
#include <string>

namespace nsa::fake {

class Collective {
public:
  static Result<Collective> open(const std::string& attempt_folder, int world_size);

  // Waits for ever if a rank does not come. True when some rank wished to stop.
  bool reduce(uint64_t step, bool stop);

private:
  static constexpr uint64_t kSteps = 8192; // counters; steps beyond use them again
  Collective(std::atomic<uint64_t>* counters, int world_size)
      : counters_(counters), world_size_(static_cast<uint64_t>(world_size)) {}
  std::atomic<uint64_t>* counters_; // arrivals in the low half, wishes to stop in the high half
  uint64_t world_size_;
};

} // namespace nsa::fake
