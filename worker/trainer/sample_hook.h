// SampleHook: text that the model writes, when an evaluation is due. It stands before the
// evaluation, in whose all-reduce the other ranks wait for rank 0. Training thread only.
#pragma once

#include "common/spec/run_spec.h"
#include "worker/link/phase_clock.h"
#include "worker/trainer/evaluation_hook.h"
#include "worker/trainer/hooks.h"

#include <functional>

namespace nsa::train {

// Samples from the present weights and keeps the texts. That they cannot be written is logged, and
// no failure.
using WriteSamples = std::function<void(uint64_t step)>;

class SampleHook : public TrainingHook {
public:
  SampleHook(const spec::RunSpec& spec, PhaseClock& clock, const WriteSamples& write)
      : spec_(spec), clock_(clock), write_(write) {}
  bool due(uint64_t step) const override { return evaluation_due(spec_, step); }
  bool runs_planned_kernels() const override { return false; }
  RankResult<std::string> run(const TrainingPosition& position) override {
    if (write_) {
      clock_.enter(progress::Phase::kEvaluation);
      write_(position.step);
    }
    return std::string();
  }

private:
  const spec::RunSpec& spec_;
  PhaseClock& clock_;
  const WriteSamples& write_; // rank 0
};

} // namespace nsa::train
