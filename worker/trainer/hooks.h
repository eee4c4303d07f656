// TrainingHook: what is done with results and between steps: metrics, held-out evaluation,
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
  // A step has completed; `position` is behind it.
  virtual void on_result(const StepResult& /*result*/, const TrainingPosition& /*position*/) {}
  // Whether run() is wanted once the newest enqueued step, `step`, has completed.
  virtual bool due(uint64_t /*step*/) const { return false; }
  // Whether run() is wanted behind the last step.
  virtual bool due_at_end(TrainingEnd /*end*/, const TrainingPosition& /*position*/) const {
    return false;
  }
  // Whether what run() computes with is in the plan of kernels.
  virtual bool runs_planned_kernels() const { return true; }
  // Nothing is under way. Gives the name of what it found not to be finite, or nothing.
  virtual RankResult<std::string> run(const TrainingPosition& /*position*/) {
    return std::string();
  }
};

} // namespace nsa::train
