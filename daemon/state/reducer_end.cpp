#include "daemon/state/reducer.h"

#include "common/base/text.h"

#include <algorithm>

namespace nsa::state {

namespace {
constexpr size_t kMaxRestartsKept = 64;
} // namespace

uint64_t Reducer::lost_steps() const {
  return run_.reached_step > run_.best_step ? run_.reached_step - run_.best_step : 0;
}

std::string Reducer::lost_text() const {
  return std::to_string(lost_steps()) + (lost_steps() == 1 ? " step after " : " steps after ") +
         (run_.best_step == 0 ? "the start" : "step " + std::to_string(run_.best_step)) +
         (lost_steps() == 1 ? " is lost" : " are lost");
}

void Reducer::end_attempt_without_ranks() {
  if (attempt_.phase == AttemptPhase::kChoosing) {
    attempt_.phase = AttemptPhase::kEnded;
    attempt_.ended_at = now_;
  }
}

void Reducer::end_run(RunState phase, std::string reason) {
  set_phase(phase, std::move(reason));
  run_.timer.reset();
  run_.ended_at = now_;
  const bool bad = phase == RunState::kFailed || (phase == RunState::kStopped && lost_steps() > 0);
  std::string text = "run " + text_of(phase);
  if (!run_.reason.empty()) text += ": " + run_.reason;
  note(ChoiceOrText<EventKind>("run_" + text_of(phase)), bad ? Severity::kError : Severity::kInfo,
       text);
}

void Reducer::conclude() {
  attempt_.phase = AttemptPhase::kEnded;
  attempt_.ended_at = now_;
  run_.timer.reset();
  const bool completed =
      all_known() && !attempt_.failure &&
      std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(), [](const RankState& r) {
        return r.exit_code == 0 && r.finish_reason == wire::FinishReason::kCompleted;
      });
  const bool left_well =
      all_known() && std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                                 [](const RankState& r) { return r.exit_code == 0 && r.finished; });
  if (completed) return end_run(RunState::kCompleted, "");
  if (run_.cancel_requested) return end_run(RunState::kCancelled, run_.reason);
  if (run_.stop_requested && left_well && lost_steps() == 0)
    return end_run(RunState::kStopped, "checkpoint of step " + std::to_string(run_.best_step));
  if (run_.stop_requested && left_well) // its ranks have done what was asked, but the checkpoint
    return end_run(RunState::kStopped, run_.failed_checkpoints.count > 0
                                           ? "its checkpoint failed (" +
                                                 run_.failed_checkpoints.why + "); " + lost_text()
                                           : lost_text());

  Failure failure = attempt_failure();
  attempt_.failure = failure.failure;
  attempt_.failure_text = failure.text;
  note(EventKind::kAttemptFailed, Severity::kError,
       "attempt " + std::to_string(attempt_.number) + " failed (" + text_of(failure.failure) +
           "): " + failure.text,
       {{"class", failure.failure}, {"next", failure.next}}, failure.culprit);
  if (run_.stop_requested)
    return end_run(RunState::kStopped, "while stopping, " + failure.text + "; " +
                                           (lost_steps() > 0 ? lost_text()
                                                             : "newest checkpoint: step " +
                                                                   std::to_string(run_.best_step)));
  if (failure.failure == wire::FailureClass::kGraphs && run_.without_graphs.empty()) {
    // "auto" has chosen wrongly, which is nobody's mistake: no budget pays for it.
    run_.without_graphs = "attempt " + std::to_string(attempt_.number) + ": " + failure.text;
    return restart(failure, {true, {}, "goes on without CUDA graphs (cuda.graphs = \"auto\")"});
  }
  if (attempt_.committed_step <= attempt_.first_step) ++run_.without_progress;
  const Decision decision = decide_restart(run_, failure.failure, now_);
  if (!decision.restart) return end_run(RunState::kFailed, failure.text + "; " + decision.why);
  run_.restarts.push_back({failure.failure, now_});
  if (run_.restarts.size() > kMaxRestartsKept) run_.restarts.erase(run_.restarts.begin());
  restart(failure, decision);
}

void Reducer::restart(const Failure& failure, const Decision& decision) {
  set_phase(RunState::kRestarting, failure.text);
  arm(TimerKind::kBackoff, decision.delay);
  note(EventKind::kRestarting, Severity::kWarning,
       decision.why + (decision.delay > Duration{}
                           ? ", in " + format_duration(to_seconds(decision.delay))
                           : ""),
       {{"class", failure.failure}, {"delay_seconds", to_seconds(decision.delay)}});
}

Failure Reducer::attempt_failure() const {
  if (!attempt_.hang_pending || attempt_.hardware_error) return classify(attempt_);
  const Hang& hang = run_.hangs.back();
  const auto failure =
      hang.kind == HangKind::kStopped ? wire::FailureClass::kStopped : wire::FailureClass::kHang;
  return {failure, hang.rank, hang_text(hang), "its stacks: " + hang.evidence_folder};
}

} // namespace nsa::state
