// The fake all-reduce: a file in the attempt folder that all ranks map, with one counter a step.
// Like the real one it completes when every rank has come, and carries the wishes to stop and for a
// checkpoint, so that all ranks act after the same step.
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

  // Waits for ever if a rank does not come. Gives what any rank wished: the request to stop may
  // have reached only some of them by now, and all must leave in the same way. `number`: of the
  // step where calls belong to steps, of the call where they pair up in order, as NCCL's do.
  Wish reduce(uint64_t number, Wish own);

private:
  static constexpr uint64_t kSteps = 8192; // counters; steps beyond use them again
  Collective(std::atomic<uint64_t>* counters, int world_size)
      : counters_(counters), world_size_(static_cast<uint64_t>(world_size)), checkpoints_(kSteps) {}
  std::atomic<uint64_t>* counters_; // four times 16 bits: arrivals, then wishes
  uint64_t world_size_;
  std::vector<uint64_t> checkpoints_; // wished for in earlier rounds of a counter
};

} // namespace nsa::fake
