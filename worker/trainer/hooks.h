// A TrainingHook handles step results and runs between steps: metrics, held-out evaluation,
// checkpoints. The trainer calls its hooks in order. Every rank has the same hooks and sees the
// same values, so all of them decide alike. Training thread only.
#pragma once

#include "worker/step/train_step.h"
#include "worker/trainer/failure.h"
#include "worker/trainer/position.h"

namespace nsa::train {

enum class TrainingEnd { kComplete, kStopped, kStoppedWithCheckpoint };

class TrainingHook {
public:
  virtual ~TrainingHook() = default;
  // Called after a step has completed. `position` includes that step.
  virtual void on_result(const StepResult& /*result*/, const TrainingPosition& /*position*/) {}
  // Returns whether run() must be called once step `step`, the newest enqueued one, has completed.
  virtual bool due(uint64_t /*step*/) const { return false; }
  // Returns whether run() must be called after the last step.
  virtual bool due_at_end(TrainingEnd /*end*/, const TrainingPosition& /*position*/) const {
    return false;
  }
  // Returns whether run() uses only kernels of the kernel plan.
  virtual bool runs_planned_kernels() const { return true; }
  // Called when no step is in flight. Returns the name of a value that is not finite, or an empty
  // string.
  virtual RankResult<std::string> run(const TrainingPosition& /*position*/) {
    return std::string();
  }
};

} // namespace nsa::train
