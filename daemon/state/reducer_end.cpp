#include "daemon/state/reducer.h"

#include "common/base/text.h"
#include "daemon/state/command.h"

#include <algorithm>
#include <csignal>

namespace nsa::state {

namespace {
constexpr size_t kMaxRestartsKept = 64;
constexpr int kDeathsOfABrokenGpu = 2;
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
  const bool left = phase == RunState::kStopped || phase == RunState::kPaused;
  const bool bad = phase == RunState::kFailed || (left && lost_steps() > 0);
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
  if (run_.gate) return end_by_gate(left_well);
  if (attempt_.climbing && left_well && !run_.stop_requested) return climb();
  if (run_.stop_requested && left_well && lost_steps() == 0)
    return end_run(RunState::kStopped, "checkpoint of step " + std::to_string(run_.best_step));
  // The ranks have stopped as requested, but steps are not in a checkpoint.
  if (run_.stop_requested && left_well)
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
    // "auto" chose wrongly, which is nobody's mistake, so it counts against no budget.
    run_.without_graphs = "attempt " + std::to_string(attempt_.number) + ": " + failure.text;
    return restart(failure, {true, {}, "continues without CUDA graphs (cuda.graphs = \"auto\")"});
  }
  const bool is_free =
      failure.failure == wire::FailureClass::kPreemption && run_.policy.preemption_is_free;
  if (attempt_.committed_step <= attempt_.first_step && !is_free) ++run_.without_progress;
  note_death(failure);
  const Decision decision = decide_restart(run_, failure.failure, now_);
  if (step_down(failure, decision)) return;
  if (!decision.restart) return end_run(RunState::kFailed, failure.text + "; " + decision.why);
  run_.restarts.push_back({failure.failure, now_});
  if (run_.restarts.size() > kMaxRestartsKept) run_.restarts.erase(run_.restarts.begin());
  restart(failure, decision);
}

// A pause stays a pause even if its ranks did not leave in order. A resume continues from the
// newest checkpoint, and the text reports what is lost.
void Reducer::end_by_gate(bool left_well) {
  std::string text = run_.gate->text;
  if (!left_well) text += "; while stopping, " + attempt_failure().text;
  text += lost_steps() > 0 ? "; " + lost_text()
                           : "; checkpoint of step " + std::to_string(run_.best_step);
  if (run_.gate->action == spec::GateAction::kPause) return end_run(RunState::kPaused, text);
  attempt_.failure = wire::FailureClass::kGate;
  attempt_.failure_text = run_.gate->text;
  note(EventKind::kAttemptFailed, Severity::kError,
       "attempt " + std::to_string(attempt_.number) + " failed (gate): " + run_.gate->text,
       {{"class", text_of(wire::FailureClass::kGate)},
        {"next",
         "look at nsactl gates " + run_.id + "; it can continue: nsactl resume " + run_.id}});
  end_run(RunState::kFailed, text);
}

bool Reducer::step_down(const Failure& failure, const Decision& decision) {
  if (run_.ladder.rungs.empty() || total_budget_spent(run_, now_)) return false;
  ++run_.standing.failures[failure.failure];
  // If the settings above fail, the run goes back without a second trial. It does not go back after
  // a failure that no settings can fix.
  const bool is_retried = failure.failure != wire::FailureClass::kUserError &&
                          failure.failure != wire::FailureClass::kData;
  const auto back = is_retried ? run_.standing.trial : std::nullopt;
  auto rung =
      back ? back : next_rung(run_.ladder, run_.standing, failure.failure, !decision.restart);
  if (const int ranks = ranks_on(run_.ladder, run_.standing, run_.ranks);
      is_retried && !has_heard_slots_for(run_, ranks)) {
    const auto with_fewer = [&](wire::FailureClass answered) {
      return rung_for_slots(run_.ladder, run_.standing, answered, heard_slots(run_));
    };
    auto fewer = with_fewer(failure.failure);
    // A rank may have failed by itself before its run lost a node. The node is missing all the
    // same.
    if (!fewer && !run_.away.empty()) fewer = with_fewer(wire::FailureClass::kNetwork);
    if (fewer) rung = fewer;
  }
  if (!rung) return false;
  const spec::Settings before = spec::compose(run_.ladder, run_.standing.active);
  take_rung(run_.ladder, run_.standing, *rung, failure.failure, now_);
  run_.restarts.push_back({failure.failure, now_});
  if (run_.restarts.size() > kMaxRestartsKept) run_.restarts.erase(run_.restarts.begin());
  run_.without_progress = 0; // the next attempt has other settings, so the count starts again
  set_phase(RunState::kRestarting, failure.text);
  tell_rung((back && rung == back ? "back to rung " : "takes rung ") + std::to_string(*rung + 1) +
                " of " + std::to_string(run_.ladder.rungs.size()) + " after " +
                text_of(failure.failure),
            before, from_seconds(run_.policy.delay_seconds), failure.failure);
  return true;
}

// A broken GPU does not always cause a driver error. A SIGKILL comes from a person or from the
// kernel, never from a GPU.
void Reducer::note_death(const Failure& failure) {
  if (run_.device != spec::Device::kCuda) return;
  const auto rank = static_cast<size_t>(failure.culprit);
  const bool may_be_the_gpu =
      failure.culprit >= 0 && rank < attempt_.slots.size() &&
      (failure.failure == wire::FailureClass::kHang ||
       (failure.failure == wire::FailureClass::kCrash && attempt_.ranks[rank].signal != SIGKILL));
  const std::string slot = may_be_the_gpu ? attempt_.slots[rank] : "";
  const int before = run_.deaths.count(slot) != 0 ? run_.deaths.at(slot) : 0;
  run_.deaths.clear(); // only slots that die in consecutive attempts count
  if (!may_be_the_gpu) return;
  run_.deaths[slot] = before + 1;
  if (before + 1 < kDeathsOfABrokenGpu) return;
  quarantine(slot, times(before + 1) + " attempts in a row died on it", failure.culprit);
}

void Reducer::climb() {
  run_.deaths.clear();
  const int rung = run_.standing.active.back();
  const spec::Settings before = spec::compose(run_.ladder, run_.standing.active);
  leave_rung(run_.standing, rung, now_);
  set_phase(RunState::kRestarting, "tries without rung " + std::to_string(rung + 1));
  tell_rung("leaves rung " + std::to_string(rung + 1) + " of " +
                std::to_string(run_.ladder.rungs.size()) + " at a checkpoint, as a trial",
            before, {}, {});
}

void Reducer::tell_rung(const std::string& what, const spec::Settings& before, Duration delay,
                        std::optional<wire::FailureClass> failure) {
  const spec::Settings after = spec::compose(run_.ladder, run_.standing.active);
  run_.ranks = ranks_on(run_.ladder, run_.standing, run_.ranks);
  arm(TimerKind::kBackoff, delay);
  nlohmann::json detail = {{"rungs", run_.standing.active},
                           {"of", run_.ladder.rungs.size()},
                           {"reason", failure ? text_of(*failure) : "climb"},
                           {"settings", spec::overrides_of(run_.ladder, run_.standing.active)},
                           {"delay_seconds", to_seconds(delay)}};
  // A change after a failure is a restart, and the class counts it.
  if (failure) detail["class"] = *failure;
  note(EventKind::kRungChanged, Severity::kWarning, what + ": " + spec::changes_text(before, after),
       std::move(detail));
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
  if (hang.kind == HangKind::kNetwork)
    return {wire::FailureClass::kNetwork, -1, hang_text(hang),
            "nsactl events says who sees it; then nsactl node probe, and docs/runbook-network.md"};
  const auto failure =
      hang.kind == HangKind::kStopped ? wire::FailureClass::kStopped : wire::FailureClass::kHang;
  return {failure, hang.rank, hang_text(hang), "its stacks: " + hang.evidence_folder};
}

} // namespace nsa::state
