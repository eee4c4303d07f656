// DecodingHook: what rank 0 does with the model by decoding when an evaluation is due. It writes
// samples, and counts the needles that the evaluation tells. It stands before the evaluation, in
// whose all-reduce the other ranks wait for rank 0. Training thread only.
#pragma once

#include "common/spec/run_spec.h"
#include "common/wire/rank_messages.h"
#include "worker/link/phase_clock.h"
#include "worker/trainer/evaluation_hook.h"
#include "worker/trainer/hooks.h"

#include <functional>
#include <vector>

namespace nsa::train {

// Both read the present weights. Empty: not asked for, or another rank's. They call `moved` after
// each piece of work, so that nsad sees that the rank does not hang. That samples cannot be written
// is logged, and no failure.
struct Decoding {
  using Moved = std::function<void()>;
  std::function<void(uint64_t step, const Moved& moved)> write_samples;
  std::function<std::vector<wire::NeedleCell>(const Moved& moved)> count_needles;
};

class DecodingHook : public TrainingHook {
public:
  // The needles found are left in `needles`.
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
