// CheckpointHook starts a checkpoint at each interval, on request, and at the end. Training thread
// only.
#pragma once

#include "worker/data/loader.h"
#include "worker/trainer/checkpointer.h"
#include "worker/trainer/hooks.h"

namespace nsa::train {

class CheckpointHook : public TrainingHook {
public:
  struct Parts {
    const spec::CheckpointSection& section;
    TrainStep& step;
    PhaseClock& clock;
    const data::Loader& loader;
    Checkpointer& checkpointer;
    uint64_t resumed_from = 0; // a checkpoint of that step exists already
  };
  explicit CheckpointHook(Parts parts) : p_(parts) {}
  void on_result(const StepResult& result, const TrainingPosition&) override;
  bool due(uint64_t step) const override;
  bool due_at_end(TrainingEnd end, const TrainingPosition& position) const override;
  RankResult<std::string> run(const TrainingPosition& position) override;

private:
  Parts p_;
  bool requested_ = false;
};

} // namespace nsa::train
