// DecodingHook decodes with the model on rank 0 when an evaluation is due. It writes samples, and
// counts the needles that the evaluation reports. It runs before the evaluation, in whose
// all-reduce the other ranks wait for rank 0. Training thread only.
#pragma once

#include "common/spec/run_spec.h"
#include "common/wire/rank_messages.h"
#include "worker/link/phase_clock.h"
#include "worker/trainer/evaluation_hook.h"
#include "worker/trainer/hooks.h"

#include <functional>
#include <vector>

namespace nsa::train {

// Both functions read the current weights. A function is empty if the run does not request it, or
// on another rank. They call `moved` after each piece of work, so that nsad sees progress. If
// samples cannot be written, the rank logs the reason and trains on.
struct Decoding {
  using Moved = std::function<void()>;
  std::function<void(uint64_t step, const Moved& moved)> write_samples;
  std::function<std::vector<wire::NeedleCell>(const Moved& moved)> count_needles;
};

class DecodingHook : public TrainingHook {
public:
  // Stores the counted needles in `needles`.
  DecodingHook(const spec::RunSpec& spec, PhaseClock& clock, const Decoding& decoding,
               std::vector<wire::NeedleCell>& needles)
      : spec_(spec), clock_(clock), decoding_(decoding), needles_(needles) {}
  bool due(uint64_t step) const override { return evaluation_due(spec_, step); }
  bool runs_planned_kernels() const override { return false; }
  RankResult<std::string> run(const TrainingPosition& position) override {
    uint64_t pieces = 0;
    const auto moved = [&] { clock_.enter(progress::Phase::kEvaluation, pieces++); };
    moved();
    if (decoding_.write_samples) decoding_.write_samples(position.step, moved);
    if (decoding_.count_needles) needles_ = decoding_.count_needles(moved);
    return std::string();
  }

private:
  const spec::RunSpec& spec_;
  PhaseClock& clock_;
  const Decoding& decoding_;
  std::vector<wire::NeedleCell>& needles_;
};

} // namespace nsa::train
