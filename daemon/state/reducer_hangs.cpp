#include "daemon/state/reducer.h"

namespace nsa::state {

bool Reducer::on(const HangFound& e) {
  const bool watched =
      attempt_.phase == AttemptPhase::kLive || attempt_.phase == AttemptPhase::kStopping;
  if (rank_of(e.rank) == nullptr || !watched || attempt_.hang_pending) return false;
  // A hang that is only observed was reported before. nsad has been restarted since, and the rank
  // still hangs.
  if (!run_.hangs.empty() && run_.hangs.back().observed_only) {
    const Hang& last = run_.hangs.back();
    const bool goes_on = last.kind == HangKind::kSkippedCollective && last.kind == e.kind;
    if (last.attempt == attempt_.number && last.rank == e.rank && (last.step == e.step || goes_on))
      return false;
  }
  Hang hang{e, attempt_.number, now_};
  hang.observed_only = !run_.policy.restart_on_hang;
  run_.hangs.push_back(hang);
  attempt_.hang_pending = true;
  if (!hang.observed_only) {
    attempt_.phase = AttemptPhase::kCollecting;
    arm(TimerKind::kEvidence, from_seconds(run_.policy.evidence_seconds));
    if (!is_leaving()) set_phase(RunState::kRestarting, hang_text(hang) + "; taking evidence");
  }
  return true;
}

bool Reducer::on(const HangWithdrawn&) {
  if (run_.hangs.empty() || run_.hangs.back().attempt != attempt_.number) return false;
  if (!attempt_.hang_pending && !run_.hangs.back().observed_only) return false;
  if (attempt_.phase == AttemptPhase::kCollecting) {
    const bool stopping = is_leaving() || attempt_.climbing;
    attempt_.phase = stopping ? AttemptPhase::kStopping : AttemptPhase::kLive;
    run_.timer.reset();
    if (stopping)
      arm(TimerKind::kStopGrace, from_seconds(run_.policy.stop_grace_seconds));
    else
      set_phase(RunState::kRunning, "");
  } else if (attempt_.phase != AttemptPhase::kLive && attempt_.phase != AttemptPhase::kStopping) {
    return false; // the attempt is already ending
  }
  run_.hangs.pop_back();
  attempt_.hang_pending = false;
  return true;
}

bool Reducer::on(const DebuggerAttached& e) {
  if (rank_of(e.rank) == nullptr) return false;
  if (run_.phase == RunState::kRunning) run_.reason = debugger_text(e);
  return true;
}

bool Reducer::on(const DebuggerGone& e) {
  if (rank_of(e.rank) == nullptr) return false;
  if (run_.phase == RunState::kRunning) run_.reason.clear();
  return true;
}

bool Reducer::on(const EvidenceSaved& e) {
  if (run_.hangs.empty() || run_.hangs.back().id != e.id) return false;
  Hang& hang = run_.hangs.back();
  hang.evidence_folder = e.folder;
  if (e.kind != HangKind::kUnknown) hang.kind = e.kind;
  hang.witnesses.insert(hang.witnesses.end(), e.findings.begin(), e.findings.end());
  if (attempt_.phase == AttemptPhase::kLive) { // observed only: nothing more is needed
    attempt_.hang_pending = false;
    return true;
  }
  // The evidence is late, but it is kept.
  if (attempt_.phase != AttemptPhase::kCollecting) return true;
  kill(hang_text(hang));
  return true;
}

} // namespace nsa::state
