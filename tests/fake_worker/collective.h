// The fake all-reduce is a file in the attempt folder that all ranks map. Each step has a counter.
// Like the real all-reduce it completes when every rank has arrived. It also carries the requests
// to stop and to write a checkpoint, so that all ranks act after the same step.
#pragma once

#include "common/base/result.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace nsa::fake {

class Collective {
public:
  static Result<Collective> open(const std::string& attempt_folder, int world_size);

  struct Wish {
    bool stop = false, with_checkpoint = false, checkpoint = false;
  };

  // Waits forever if a rank does not arrive. Returns the requests of all ranks together: a stop
  // request may have reached only some of them, but all must leave in the same way. `number` is the
  // number of the step if calls belong to steps. It is the number of the call if calls pair up in
  // order, as in NCCL.
  Wish reduce(uint64_t number, Wish own);

private:
  // Number of counters; later steps use them again. Ranks are at most a few steps apart. The number
  // is small, so that every long run of a test uses counters again.
  static constexpr uint64_t kSteps = 64;
  Collective(std::atomic<uint64_t>* counters, int world_size)
      : counters_(counters), world_size_(static_cast<uint64_t>(world_size)), rounds_(kSteps),
        checkpoints_(kSteps) {}
  std::atomic<uint64_t>* counters_; // four times 16 bits: arrivals, then wishes
  uint64_t world_size_;
  std::vector<uint64_t> rounds_;      // of each counter in this attempt, this one included
  std::vector<uint64_t> checkpoints_; // requested in earlier rounds of a counter
};

} // namespace nsa::fake
