// StepHook: code that a step calls but that is not part of it: injected faults, stop requests,
// measurements. The step calls its hooks in the given order on the training thread. A hook without
// work costs one virtual call.
#pragma once

#include "common/progress/phase.h"

#include <cstdint>

namespace nsa::train {

// What this rank asks all ranks for. The requests of all are summed behind the gradients.
struct StepRequests {
  bool stop = false, stop_with_checkpoint = false, checkpoint = false;
};

class StepHook {
public:
  virtual ~StepHook() = default;
  // The host gets to this phase; what it enqueues from here on belongs to it.
  virtual void enter(progress::Phase /*phase*/, uint64_t /*step*/, uint64_t /*micro_step*/) {}
  // Before a step's first forward pass: whether its loss becomes NaN.
  virtual bool poisons(uint64_t /*step*/) { return false; }
  // Before gradients are reduced.
  virtual void add_requests(StepRequests& /*requests*/) {}
  // Before gradients are reduced: whether this rank starts no further collective in this step and
  // goes on with its own sums.
  virtual bool skips_collectives(uint64_t /*step*/) { return false; }
};

} // namespace nsa::train
