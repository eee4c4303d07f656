#include "worker/trainer/checkpoint_hook.h"

namespace nsa::train {

void CheckpointHook::on_result(const StepResult& result, const TrainingPosition&) {
  requested_ = requested_ || result.asks(kCheckpoint);
}

// A request may arrive while a later step is already running. The checkpoint then holds the newest
// step, whose state is in the buffers.
bool CheckpointHook::due(uint64_t step) const {
  const auto interval = static_cast<uint64_t>(p_.section.interval_steps);
  return requested_ || (interval > 0 && step % interval == 0);
}

// A request that arrives with the last results still gets its checkpoint.
bool CheckpointHook::due_at_end(TrainingEnd end, const TrainingPosition& position) const {
  const bool wanted =
      requested_ || (end == TrainingEnd::kComplete ? p_.section.at_end
                                                   : end == TrainingEnd::kStoppedWithCheckpoint);
  return wanted && p_.checkpointer.last_step() != position.step && position.step > p_.resumed_from;
}

RankResult<std::string> CheckpointHook::run(const TrainingPosition& position) {
  requested_ = false;
  const MonotonicTime begin = MonotonicTime::now();
  if (auto gathered = p_.step.gather_state(position.step); !gathered)
    return failed(gathered.error());
  const data::DataState data = p_.loader.state();
  manifest::DataState stored{data.seed, static_cast<uint64_t>(data.epoch),
                             static_cast<uint64_t>(data.index), data.sequence_length,
                             data.dataset_digest};
  for (const dataset::MixedSource& source : data.sources)
    stored.sources.push_back({source.digest, source.weight});
  stored.generations = static_cast<uint64_t>(data.generations);
  stored.generations_digest = data.generations_digest;
  p_.checkpointer.start(position, stored, begin, p_.clock);
  return std::string();
}

} // namespace nsa::train
