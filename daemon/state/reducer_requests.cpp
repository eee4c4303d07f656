#include "daemon/state/reducer.h"

#include "common/base/text.h"

namespace nsa::state {

bool Reducer::on(const TimerFired& e) {
  if (!run_.timer || e.timer != run_.timer->kind) return false;
  const TimerKind kind = run_.timer->kind;
  run_.timer.reset();
  switch (kind) {
  case TimerKind::kBackoff:
    begin_or_queue();
    break;
  case TimerKind::kSettle:
    take_down("a rank lost its peers");
    break;
  case TimerKind::kEvidence:
    kill(hang_text(run_.hangs.back()) + "; evidence took too long");
    break;
  case TimerKind::kStopGrace:
    if (attempt_.climbing && !is_leaving()) {
      attempt_.failure = wire::FailureClass::kHang;
      attempt_.failure_text = "not stopped within " +
                              format_duration(run_.policy.stop_grace_seconds) +
                              ", to try the rung above";
    }
    kill("not stopped within " + format_duration(run_.policy.stop_grace_seconds));
    break;
  }
  return true;
}

// The ranks are asked to leave with a checkpoint, as for a person's stop. If the attempt is already
// ending, the run ends with it.
bool Reducer::on(const GateJudged& e) {
  if (has_ended(run_.phase) || no_ranks()) return false;
  if (e.passed || e.action == spec::GateAction::kWarn || is_leaving()) return true;
  run_.gate = GateStop{e.action, "gate \"" + e.name + "\": " + e.text};
  run_.stop_with_checkpoint = true;
  set_phase(RunState::kStopping, run_.gate->text);
  if (attempt_.phase == AttemptPhase::kLive) stop_ranks();
  return true;
}

bool Reducer::on(const StopRequested& e) {
  if (has_ended(run_.phase) || run_.stop_requested || run_.cancel_requested) return false;
  run_.stop_requested = true;
  run_.stop_with_checkpoint = e.checkpoint;
  if (no_ranks()) {
    end_attempt_without_ranks();
    end_run(RunState::kStopped, "stopped by " + e.by);
    return true;
  }
  // The reason before may explain a slow stop, for example a debugger on a rank.
  const std::string before = run_.reason.empty() ? "" : "; " + run_.reason;
  set_phase(RunState::kStopping, "stop requested by " + e.by + before);
  if (attempt_.phase == AttemptPhase::kLive) stop_ranks();
  return true;
}

bool Reducer::on(const CancelRequested& e) {
  if (has_ended(run_.phase) || run_.cancel_requested) return false;
  run_.cancel_requested = true;
  if (no_ranks()) {
    end_attempt_without_ranks();
    end_run(RunState::kCancelled, "cancelled by " + e.by);
    return true;
  }
  set_phase(RunState::kStopping, "cancelled by " + e.by);
  if (with_shim() && attempt_.phase != AttemptPhase::kKilling) kill("cancelled");
  return true;
}

bool Reducer::on(const ResumeRequested& e) {
  if (!has_ended(run_.phase)) return false;
  // The run stays on its rungs unless somebody has changed the settings below them. So a setting
  // that saved memory stays in effect.
  if (!(run_.ladder == e.ladder)) {
    run_.ladder = e.ladder;
    run_.standing = {};
  }
  run_.standing.trial.reset();
  run_.standing.failures.clear();
  // A person has looked at the run, so each rung may be left once more.
  run_.standing.climbed.clear();
  run_.standing.begins = true;
  run_.ranks = ranks_on(run_.ladder, run_.standing, e.ranks);
  run_.device = e.device;
  run_.policy = e.policy;
  run_.order = state_.next_order++;
  run_.stop_requested = run_.cancel_requested = false;
  run_.without_progress = 0;
  run_.restarts.clear(); // a person has looked at the run
  run_.without_graphs.clear();
  run_.gate.reset();
  run_.slots.clear(); // the run returned its slots when it ended
  run_.quarantine.clear();
  run_.deaths.clear();
  run_.requeued = false;
  run_.ended_at = {};
  if (e.from_step >= 0)
    run_.left_behind.push_back({attempt_.number, static_cast<uint64_t>(e.from_step)});
  if (!e.replaced_data.empty()) run_.replaced_data.insert(e.replaced_data);
  set_phase(RunState::kQueued, "resumed by " + e.by);
  return true;
}

} // namespace nsa::state
