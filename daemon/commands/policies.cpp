#include "daemon/commands/policies.h"

namespace nsa::control {

state::Policy policy_of(const spec::RunSpec& spec, uint64_t jitter_seed) {
  state::Policy p;
  p.max_restarts = static_cast<int>(spec.restart.max_restarts);
  p.window_seconds = spec.restart.window_seconds;
  p.max_total_restarts = static_cast<int>(spec.restart.max_total_restarts);
  p.delay_seconds = spec.restart.delay_seconds;
  p.max_delay_seconds = spec.restart.max_delay_seconds;
  p.max_without_progress = static_cast<int>(spec.restart.max_without_progress);
  p.restart_on_hang = spec.hang.action == spec::HangAction::kRestart;
  p.evidence_seconds = spec.hang.evidence_seconds;
  // A stop waits for the step in flight and for a checkpoint, so it needs this much time.
  p.stop_grace_seconds = spec.hang.checkpoint_seconds + 30;
  p.preemption_is_free = spec.engine.is_used();
  p.jitter_seed = jitter_seed;
  return p;
}

} // namespace nsa::control
