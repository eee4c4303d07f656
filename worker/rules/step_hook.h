// StepHook: code that a step calls but that is not part of it: injected faults, stop requests,
// measurements. The step calls its hooks in the given order on the training thread. A hook without
// work costs one virtual call.
#pragma once

#include "common/progress/phase.h"

#include <cstdint>

namespace nsa::train {

// Requests of this rank to all ranks. All ranks' requests are summed together with the gradients.
struct StepRequests {
  bool stop = false, stop_with_checkpoint = false, checkpoint = false;
};

class StepHook {
public:
  virtual ~StepHook() = default;
  // Called when the host enters this phase. Work that the host enqueues from here on belongs to it.
  virtual void enter(progress::Phase /*phase*/, uint64_t /*step*/, uint64_t /*micro_step*/) {}
  // Called before a step's first forward pass. Returns whether its loss becomes NaN.
  virtual bool poisons(uint64_t /*step*/) { return false; }
  // Called before gradients are reduced.
  virtual void add_requests(StepRequests& /*requests*/) {}
  // Called before gradients are reduced. Returns whether this rank starts no more collectives in
  // this step and continues with its own sums.
  virtual bool skips_collectives(uint64_t /*step*/) { return false; }
};

} // namespace nsa::train
