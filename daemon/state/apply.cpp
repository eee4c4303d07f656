#include "daemon/state/apply.h"

#include "common/base/text.h"
#include "daemon/state/policy.h"
#include "daemon/state/xid.h"

#include <algorithm>

namespace nsa::state {

namespace {

// How long a victim's cause may take to show: deaths of one accident reach the shim within
// milliseconds of each other.
constexpr Duration kSettle = std::chrono::milliseconds(300);
constexpr size_t kMaxRestartsKept = 64;

class Reducer {
public:
  Reducer(State& state, Run& run, const Event& event, WallTime now, std::vector<Note>& notes)
      : state_(state), run_(run), attempt_(run.attempt), event_(event), now_(now), notes_(notes) {}

  // False: the event means nothing here.
  bool handle() {
    return std::visit([this](const auto& body) { return on(body); }, event_.body);
  }

private:
  // ---- before there are ranks -----------------------------------------------------------------
  bool on(const Submitted&) { return false; } // handled by apply(): makes the run

  bool on(const SlotsGranted& e) {
    if (run_.phase != RunPhase::kQueued) return false;
    run_.slots = e.slots;
    if (attempt_.number > 0) ++run_.resumes;
    if (run_.started_at.nanoseconds == 0) run_.started_at = now_;
    begin_attempt();
    set_phase(RunPhase::kStarting, "");
    return true;
  }

  bool on(const CheckpointChosen& e) {
    if (attempt_.phase != AttemptPhase::kChoosing) return false;
    attempt_.first_step = e.step;
    attempt_.checkpoint_folder = e.folder;
    run_.best_step = e.step; // what was newer did not verify, and does not count as progress
    run_.reached_step = e.step;
    attempt_.phase = AttemptPhase::kLaunching;
    for (const RejectedCheckpoint& r : e.rejected)
      note("checkpoint_rejected", "warning",
           "checkpoint of step " + std::to_string(r.step) + " is not used: " + r.problem,
           {{"step", r.step}, {"folder", r.folder}});
    return true;
  }

  bool on(const AttemptPrepared& e) {
    if (attempt_.phase != AttemptPhase::kLaunching) return false;
    attempt_.token = e.token;
    return true;
  }

  bool on(const ShimStarted& e) {
    if (attempt_.phase != AttemptPhase::kLaunching) return false;
    attempt_.shim_boot_id = e.boot_id;
    attempt_.shim_pid = e.pid;
    attempt_.shim_start_time_ticks = e.start_time_ticks;
    attempt_.phase = AttemptPhase::kLive;
    // Asked to leave while it was being started.
    if (run_.cancel_requested)
      kill("cancelled");
    else if (run_.stop_requested)
      stop_ranks();
    return true;
  }

  bool on(const AttemptFailedToStart& e) {
    if (attempt_.phase == AttemptPhase::kEnded || attempt_.number == 0) return false;
    attempt_.failure =
        e.permanent ? wire::FailureClass::kUserError : wire::FailureClass::kSupervisor;
    attempt_.failure_text = "the attempt could not be started: " + e.what;
    for (RankState& rank : attempt_.ranks)
      if (rank.started && !rank.exited) {
        kill("the attempt could not be started");
        return true;
      }
    if (attempt_.shim_pid != 0) run_.unreleased.insert(attempt_.number);
    conclude();
    return true;
  }

  // ---- the shim
  // -----------------------------------------------------------------------------------
  bool on(const ShimAdopted&) { return with_shim(); }

  bool on(const ShimLost& e) {
    if (!with_shim()) return false;
    for (RankState& rank : attempt_.ranks)
      if (!rank.exited) {
        rank.exited = true;
        rank.exit_known = false;
      }
    if (!attempt_.hang_pending && !all_known()) {
      attempt_.failure = wire::FailureClass::kSupervisor;
      attempt_.failure_text = "the ranks' parent (nsa-shim) is gone: " + e.why;
    }
    conclude();
    return true;
  }

  bool on(const RunRecovered&) { return false; } // handled by apply(): makes the run

  // The shim remembers how its ranks are, not what they said. A rank that lives has said hello;
  // ends are told one by one behind this.
  bool on(const MessagesLost& e) {
    if (!with_shim()) return false;
    attempt_.shim_sequence = std::max(attempt_.shim_sequence, e.last);
    for (const wire::RankIdentity& seen : e.ranks) {
      RankState* rank = rank_of(seen.rank);
      if (rank == nullptr || seen.pid == 0) continue;
      rank->started = rank->greeted = true;
      rank->pid = seen.pid;
      rank->start_time_ticks = seen.start_time_ticks;
    }
    const bool all = std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                                 [](const RankState& r) { return r.greeted; });
    if (all && attempt_.phase == AttemptPhase::kLive)
      set_phase(RunPhase::kRunning, run_.phase == RunPhase::kStarting ? run_.reason : "");
    return true;
  }

  bool on(const ShimReleased&) { return run_.unreleased.erase(event_.attempt) > 0; }

  // ---- ranks
  // --------------------------------------------------------------------------------------
  bool on(const wire::RankStarted& e) {
    RankState* rank = rank_of(e.rank);
    if (rank == nullptr || rank->started) return false;
    rank->started = true;
    rank->pid = e.pid;
    rank->start_time_ticks = e.start_time_ticks;
    return true;
  }

  bool on(const wire::RankHello& e) {
    RankState* rank = rank_of(e.rank);
    if (rank == nullptr || rank->greeted) return false;
    rank->greeted = true;
    const bool all = std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                                 [](const RankState& r) { return r.greeted; });
    if (all && attempt_.phase == AttemptPhase::kLive) set_phase(RunPhase::kRunning, "");
    return true;
  }

  bool on(const wire::RankExited& e) {
    RankState* rank = rank_of(e.rank);
    if (rank == nullptr || rank->exited) return false;
    rank->exited = true;
    rank->exit_code = e.exit_code;
    rank->signal = e.signal;
    rank->killed_by_shim = e.killed_by_shim;
    rank->exit_order = e.monotonic_ns;
    if (all_exited()) {
      run_.unreleased.insert(attempt_.number);
      conclude();
      return true;
    }
    const bool well = e.exit_code == 0 && rank->finished;
    if (well || attempt_.phase == AttemptPhase::kKilling) return true;
    if (attempt_.phase == AttemptPhase::kCollecting) return true; // evidence first, then the rest
    if (!is_victim(*rank)) {
      take_down("rank " + std::to_string(e.rank) + " ended with " +
                exit_text(e.exit_code, e.signal));
    } else if (attempt_.phase == AttemptPhase::kLive || attempt_.phase == AttemptPhase::kStopping) {
      attempt_.phase = AttemptPhase::kSettling;
      arm(TimerKind::kSettle, kSettle);
    }
    return true;
  }

  bool on(const wire::RankError& e) {
    RankState* rank = rank_of(e.rank);
    if (rank == nullptr || !rank->error.empty()) return false;
    rank->error = e.what;
    rank->error_next = e.next;
    rank->blamed_peer = e.blamed_peer;
    const bool first = std::none_of(attempt_.ranks.begin(), attempt_.ranks.end(), died_by_itself);
    if (first && !attempt_.told && is_own_cause(e.exit_code))
      attempt_.told = ToldCause{e.rank, e.exit_code};
    return true;
  }

  bool on(const wire::RankFinished& e) {
    RankState* rank = rank_of(e.rank);
    if (rank == nullptr || rank->finished) return false;
    rank->finished = true;
    rank->finish_reason = e.reason;
    run_.reached_step = std::max(run_.reached_step, e.step);
    return true;
  }

  // A toggle that is not in effect as requested fails the attempt; "auto" leaves the choice open.
  bool on(const wire::RankToggles& e) {
    if (rank_of(e.rank) == nullptr) return false;
    for (const wire::EffectiveToggle& t : e.toggles) {
      if (t.requested.empty() || t.requested == "auto" || t.requested == t.effective) continue;
      if (attempt_.failure) break;
      attempt_.failure = wire::FailureClass::kUserError;
      attempt_.failure_text = "toggle " + t.name + " was requested as " + t.requested +
                              ", in effect on rank " + std::to_string(e.rank) + " is " +
                              t.effective;
      take_down(attempt_.failure_text);
    }
    return true;
  }

  bool on(const wire::RankCheckpoint& e) {
    if (rank_of(e.rank) == nullptr) return false;
    run_.reached_step = std::max(run_.reached_step, e.step);
    if (!e.error.empty()) {
      run_.failed_checkpoints = {run_.failed_checkpoints.count + 1, e.step, e.error};
      note("checkpoint_failed", "error",
           "checkpoint of step " + std::to_string(e.step) + " failed: " + e.error,
           {{"step", e.step}});
      return true;
    }
    if (run_.failed_checkpoints.count > 0)
      note("checkpoints_recovered", "info",
           "checkpoints are written again, after " + times(run_.failed_checkpoints.count) +
               " without",
           {{"step", e.step}});
    run_.failed_checkpoints = {};
    attempt_.committed_step = std::max(attempt_.committed_step, e.step);
    if (e.step > run_.best_step) {
      run_.best_step = e.step;
      run_.without_progress = 0;
    }
    return true;
  }

  // What a rank says and changes nothing here: it is recorded.
  template <wire::DescribedMessage T> bool on(const T& e) { return rank_of(e.rank) != nullptr; }
  bool on(const wire::LogDropped& e) { return rank_of(e.rank) != nullptr; }
  bool on(const wire::Refused& e) { return rank_of(e.rank) != nullptr; }

  bool on(const HostOutOfMemory&) {
    if (!with_shim()) return false;
    attempt_.host_out_of_memory = true;
    return true;
  }

  bool on(const GpuFault& e) {
    if (rank_of(e.rank) == nullptr) return false;
    if (!attempt_.hardware_error && xid_meaning(e.xid).hardware)
      attempt_.hardware_error = GpuError{e.rank, e.uuid, e.xid};
    return true;
  }

  bool on(const FirstStep&) {
    if (!with_shim() || attempt_.first_step_done) return false;
    attempt_.first_step_done = true;
    if (!run_.hangs.empty()) {
      Hang& last = run_.hangs.back();
      if (last.recover_seconds < 0 && !last.observed_only && last.attempt < attempt_.number) {
        last.recover_seconds = to_seconds(now_ - last.found_at);
        note("recovered", "info",
             "recovered from the hang of rank " + std::to_string(last.rank) + " in " +
                 format_duration(last.recover_seconds),
             {{"recover_seconds", last.recover_seconds}});
      }
    }
    return true;
  }

  // ---- hangs
  // --------------------------------------------------------------------------------------
  bool on(const HangFound& e) {
    const bool watched =
        attempt_.phase == AttemptPhase::kLive || attempt_.phase == AttemptPhase::kStopping;
    if (rank_of(e.rank) == nullptr || !watched || attempt_.hang_pending) return false;
    // One that is only observed was told before: nsad has died since, and the rank still hangs.
    if (!run_.hangs.empty() && run_.hangs.back().observed_only) {
      const Hang& last = run_.hangs.back();
      const bool goes_on = last.kind == HangKind::kSkippedCollective && last.kind == e.kind;
      if (last.attempt == attempt_.number && last.rank == e.rank &&
          (last.step == e.step || goes_on))
        return false;
    }
    Hang hang;
    hang.id = e.id;
    hang.attempt = attempt_.number;
    hang.rank = e.rank;
    hang.kind = e.kind;
    hang.phase = e.phase;
    hang.step = e.step;
    hang.detect_seconds = e.detect_seconds;
    hang.witnesses = e.witnesses;
    hang.found_at = now_;
    hang.observed_only = !run_.policy.restart_on_hang;
    run_.hangs.push_back(hang);
    attempt_.hang_pending = true;
    if (!hang.observed_only) {
      attempt_.phase = AttemptPhase::kCollecting;
      arm(TimerKind::kEvidence, from_seconds(run_.policy.evidence_seconds));
      if (!run_.stop_requested)
        set_phase(RunPhase::kRestarting, hang_text(hang) + "; taking evidence");
    }
    return true;
  }

  bool on(const HangWithdrawn&) {
    if (run_.hangs.empty() || run_.hangs.back().attempt != attempt_.number) return false;
    if (!attempt_.hang_pending && !run_.hangs.back().observed_only) return false;
    if (attempt_.phase == AttemptPhase::kCollecting) {
      attempt_.phase = run_.stop_requested ? AttemptPhase::kStopping : AttemptPhase::kLive;
      run_.timer.reset();
      if (run_.stop_requested)
        arm(TimerKind::kStopGrace, from_seconds(run_.policy.stop_grace_seconds));
      else
        set_phase(RunPhase::kRunning, "");
    } else if (attempt_.phase != AttemptPhase::kLive && attempt_.phase != AttemptPhase::kStopping) {
      return false; // already being taken down
    }
    run_.hangs.pop_back();
    attempt_.hang_pending = false;
    return true;
  }

  bool on(const DebuggerAttached& e) {
    if (rank_of(e.rank) == nullptr) return false;
    if (run_.phase == RunPhase::kRunning) run_.reason = debugger_text(e);
    return true;
  }

  bool on(const DebuggerGone& e) {
    if (rank_of(e.rank) == nullptr) return false;
    if (run_.phase == RunPhase::kRunning) run_.reason.clear();
    return true;
  }

  bool on(const SlowStep& e) { return rank_of(e.rank) != nullptr; }

  bool on(const EvidenceSaved& e) {
    if (run_.hangs.empty() || run_.hangs.back().id != e.id) return false;
    Hang& hang = run_.hangs.back();
    hang.evidence_folder = e.folder;
    if (e.kind != HangKind::kUnknown) hang.kind = e.kind;
    hang.witnesses.insert(hang.witnesses.end(), e.findings.begin(), e.findings.end());
    if (attempt_.phase == AttemptPhase::kLive) { // observed only: nothing more is wanted
      attempt_.hang_pending = false;
      return true;
    }
    if (attempt_.phase != AttemptPhase::kCollecting) return true; // late, but kept
    kill(hang_text(hang));
    return true;
  }

  // ---- timers and requests --------------------------------------------------------------------
  bool on(const TimerFired& e) {
    if (!run_.timer || timer_name(run_.timer->kind) != e.timer) return false;
    const TimerKind kind = run_.timer->kind;
    run_.timer.reset();
    switch (kind) {
    case TimerKind::kBackoff:
      begin_attempt();
      break;
    case TimerKind::kSettle:
      take_down("a rank lost its peers");
      break;
    case TimerKind::kEvidence:
      kill(hang_text(run_.hangs.back()) + "; evidence took too long");
      break;
    case TimerKind::kStopGrace:
      kill("not stopped within " + format_duration(run_.policy.stop_grace_seconds));
      break;
    }
    return true;
  }

  bool on(const StopRequested& e) {
    if (has_ended(run_.phase) || run_.stop_requested || run_.cancel_requested) return false;
    run_.stop_requested = true;
    run_.stop_with_checkpoint = e.checkpoint;
    if (no_ranks()) {
      end_attempt_without_ranks();
      end_run(RunPhase::kStopped, "stopped by " + e.by);
      return true;
    }
    // A debugger on a rank, say: what may hold the stop up.
    const std::string before = run_.reason.empty() ? "" : "; " + run_.reason;
    set_phase(RunPhase::kStopping, "stop requested by " + e.by + before);
    if (attempt_.phase == AttemptPhase::kLive) stop_ranks();
    return true;
  }

  bool on(const CancelRequested& e) {
    if (has_ended(run_.phase) || run_.cancel_requested) return false;
    run_.cancel_requested = true;
    if (no_ranks()) {
      end_attempt_without_ranks();
      end_run(RunPhase::kCancelled, "cancelled by " + e.by);
      return true;
    }
    set_phase(RunPhase::kStopping, "cancelled by " + e.by);
    if (with_shim() && attempt_.phase != AttemptPhase::kKilling) kill("cancelled");
    return true;
  }

  bool on(const ResumeRequested& e) {
    if (!has_ended(run_.phase)) return false;
    run_.ranks = e.ranks;
    run_.device = e.device;
    run_.policy = e.policy;
    run_.order = state_.next_order++;
    run_.stop_requested = run_.cancel_requested = false;
    run_.without_progress = 0;
    run_.restarts.clear(); // a person has looked at it
    run_.without_graphs.clear();
    run_.ended_at = {};
    set_phase(RunPhase::kQueued, "resumed by " + e.by);
    return true;
  }

  bool on(const RunClosed&) { return false; } // handled by apply(): the run leaves the state

  // ---- shared
  // -------------------------------------------------------------------------------------
  bool with_shim() const {
    return attempt_.phase >= AttemptPhase::kLive && attempt_.phase < AttemptPhase::kEnded;
  }

  // No shim can be there: queued, waiting for the next attempt, or choosing its checkpoint.
  bool no_ranks() const {
    return attempt_.number == 0 || attempt_.phase == AttemptPhase::kEnded ||
           attempt_.phase == AttemptPhase::kChoosing;
  }

  RankState* rank_of(Rank rank) {
    // Ranks may speak before ShimStarted is recorded: the shim starts them at once.
    if (attempt_.phase < AttemptPhase::kLaunching || attempt_.phase == AttemptPhase::kEnded)
      return nullptr;
    if (rank < 0 || static_cast<size_t>(rank) >= attempt_.ranks.size()) return nullptr;
    return &attempt_.ranks[static_cast<size_t>(rank)];
  }

  bool all_exited() const {
    return std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                       [](const RankState& r) { return r.exited; });
  }
  bool all_known() const {
    return std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                       [](const RankState& r) { return r.exited && r.exit_known; });
  }

  static std::string hang_text(const Hang& hang) {
    return "rank " + std::to_string(hang.rank) + " " + text_of(hang.kind) + " in " + hang.phase +
           " at step " + std::to_string(hang.step);
  }

  static std::string times(int count) { return count == 1 ? "one" : std::to_string(count); }

  // Computed, and in no checkpoint; as far as this is known here.
  uint64_t lost_steps() const {
    return run_.reached_step > run_.best_step ? run_.reached_step - run_.best_step : 0;
  }
  std::string lost_text() const {
    return std::to_string(lost_steps()) + (lost_steps() == 1 ? " step after " : " steps after ") +
           (run_.best_step == 0 ? "the start" : "step " + std::to_string(run_.best_step)) +
           (lost_steps() == 1 ? " is lost" : " are lost");
  }

  void set_phase(RunPhase phase, std::string reason) {
    run_.phase = phase;
    run_.reason = std::move(reason);
  }

  void arm(TimerKind kind, Duration delay) { run_.timer = Timer{kind, now_ + delay, delay}; }

  void note(std::string kind, std::string severity, std::string text, nlohmann::json detail = {},
            Rank rank = -1) {
    notes_.push_back({run_.id, attempt_.number, rank, std::move(kind), std::move(severity),
                      std::move(text), std::move(detail)});
  }

  void begin_attempt() {
    const AttemptNumber number = attempt_.number + 1;
    attempt_ = Attempt{};
    attempt_.number = number;
    attempt_.started_at = now_;
    attempt_.ranks.resize(static_cast<size_t>(run_.ranks));
  }

  void stop_ranks() {
    attempt_.phase = AttemptPhase::kStopping;
    arm(TimerKind::kStopGrace, from_seconds(run_.policy.stop_grace_seconds));
  }

  void kill(const std::string& reason) {
    attempt_.phase = AttemptPhase::kKilling;
    attempt_.kill_reason = reason;
    run_.timer.reset();
  }

  void take_down(const std::string& why) {
    kill(why);
    if (!run_.stop_requested && !run_.cancel_requested) set_phase(RunPhase::kRestarting, why);
  }

  void end_attempt_without_ranks() {
    if (attempt_.phase == AttemptPhase::kChoosing) {
      attempt_.phase = AttemptPhase::kEnded;
      attempt_.ended_at = now_;
    }
  }

  void end_run(RunPhase phase, std::string reason) {
    set_phase(phase, std::move(reason));
    run_.timer.reset();
    run_.ended_at = now_;
    const bool bad =
        phase == RunPhase::kFailed || (phase == RunPhase::kStopped && lost_steps() > 0);
    std::string text = "run " + std::string(run_phase_name(phase));
    if (!run_.reason.empty()) text += ": " + run_.reason;
    note("run_" + std::string(run_phase_name(phase)), bad ? "error" : "info", text);
  }

  // All ranks have ended (or never were): what was this attempt, and what comes next?
  void conclude() {
    attempt_.phase = AttemptPhase::kEnded;
    attempt_.ended_at = now_;
    run_.timer.reset();
    const bool completed =
        all_known() && !attempt_.failure &&
        std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(), [](const RankState& r) {
          return r.exit_code == 0 && r.finish_reason == "completed";
        });
    const bool left_well = all_known() && std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                                                      [](const RankState& r) {
                                                        return r.exit_code == 0 && r.finished;
                                                      });
    if (completed) return end_run(RunPhase::kCompleted, "");
    if (run_.cancel_requested) return end_run(RunPhase::kCancelled, run_.reason);
    if (run_.stop_requested && left_well && lost_steps() == 0)
      return end_run(RunPhase::kStopped, "checkpoint of step " + std::to_string(run_.best_step));
    if (run_.stop_requested && left_well) // its ranks have done what was asked, but the checkpoint
      return end_run(RunPhase::kStopped, run_.failed_checkpoints.count > 0
                                             ? "its checkpoint failed (" +
                                                   run_.failed_checkpoints.why + "); " + lost_text()
                                             : lost_text());

    Failure failure = attempt_failure();
    attempt_.failure = failure.failure;
    attempt_.failure_text = failure.text;
    note("attempt_failed", "error",
         "attempt " + std::to_string(attempt_.number) + " failed (" +
             std::string(failure_class_name(failure.failure)) + "): " + failure.text,
         {{"class", failure_class_name(failure.failure)}, {"next", failure.next}}, failure.culprit);
    if (run_.stop_requested)
      return end_run(RunPhase::kStopped,
                     "while stopping, " + failure.text + "; " +
                         (lost_steps() > 0
                              ? lost_text()
                              : "newest checkpoint: step " + std::to_string(run_.best_step)));
    if (failure.failure == wire::FailureClass::kGraphs && run_.without_graphs.empty()) {
      // "auto" has chosen wrongly, which is nobody's mistake: no budget pays for it.
      run_.without_graphs = "attempt " + std::to_string(attempt_.number) + ": " + failure.text;
      return restart(failure, {true, {}, "goes on without CUDA graphs (cuda.graphs = \"auto\")"});
    }
    if (attempt_.committed_step <= attempt_.first_step) ++run_.without_progress;
    const Decision decision = decide_restart(run_, failure.failure, now_);
    if (!decision.restart) return end_run(RunPhase::kFailed, failure.text + "; " + decision.why);
    run_.restarts.push_back({failure.failure, now_});
    if (run_.restarts.size() > kMaxRestartsKept) run_.restarts.erase(run_.restarts.begin());
    restart(failure, decision);
  }

  void restart(const Failure& failure, const Decision& decision) {
    set_phase(RunPhase::kRestarting, failure.text);
    arm(TimerKind::kBackoff, decision.delay);
    note("restarting", "warning",
         decision.why + (decision.delay > Duration{}
                             ? ", in " + format_duration(to_seconds(decision.delay))
                             : ""),
         {{"class", failure_class_name(failure.failure)},
          {"delay_seconds", to_seconds(decision.delay)}});
  }

  Failure attempt_failure() const {
    if (!attempt_.hang_pending || attempt_.hardware_error) return classify(attempt_);
    const Hang& hang = run_.hangs.back();
    const auto failure =
        hang.kind == HangKind::kStopped ? wire::FailureClass::kStopped : wire::FailureClass::kHang;
    return {failure, hang.rank, hang_text(hang), "its stacks: " + hang.evidence_folder};
  }

  State& state_;
  Run& run_;
  Attempt& attempt_;
  const Event& event_;
  const WallTime now_;
  std::vector<Note>& notes_;
};

Run make_run(State& state, const Event& event, const Submitted& body, WallTime now) {
  Run run;
  run.id = event.run;
  run.order = state.next_order++;
  run.ranks = body.ranks;
  run.device = body.device;
  run.policy = body.policy;
  run.submitted_at = now;
  return run;
}

// The run goes on in the attempt whose shim was found, whatever the ledger thought of it.
void recover_run(State& state, const Event& event, const RunRecovered& body, WallTime now) {
  const auto [found, is_new] = state.runs.try_emplace(event.run);
  Run& run = found->second;
  if (is_new) {
    run.id = event.run;
    run.order = state.next_order++;
    run.submitted_at = now;
  }
  run.ranks = body.ranks;
  run.device = body.device;
  run.policy = body.policy;
  run.slots = body.slots;
  run.phase = RunPhase::kStarting;
  run.reason = "recovered: the ledger did not know this attempt";
  run.best_step = std::max(run.best_step, body.best_step);
  run.unreleased.erase(event.attempt);
  run.stop_requested = run.cancel_requested = false;
  run.timer.reset();
  if (run.started_at.nanoseconds == 0) run.started_at = now;
  run.ended_at = {};
  run.attempt = Attempt{};
  run.attempt.number = event.attempt;
  run.attempt.phase = AttemptPhase::kLive;
  run.attempt.token = body.token;
  run.attempt.first_step = body.first_step;
  run.attempt.checkpoint_folder = body.checkpoint_folder;
  run.attempt.shim_boot_id = body.boot_id;
  run.attempt.shim_pid = body.shim_pid;
  run.attempt.shim_start_time_ticks = body.shim_start_time_ticks;
  run.attempt.started_at = now;
  run.attempt.ranks.resize(static_cast<size_t>(body.ranks));
}

// False: nothing changed.
bool reduce(State& state, const Event& event, WallTime now, std::vector<Note>& notes) {
  const auto found = state.runs.find(event.run);
  if (const auto* body = std::get_if<Submitted>(&event.body)) {
    if (found != state.runs.end()) return false;
    state.runs.emplace(event.run, make_run(state, event, *body, now));
    return true;
  }
  if (const auto* body = std::get_if<RunRecovered>(&event.body)) {
    recover_run(state, event, *body, now);
    return true;
  }
  if (found == state.runs.end()) return false;
  Run& run = found->second;
  if (std::holds_alternative<RunClosed>(event.body)) {
    if (!has_ended(run.phase) || !run.unreleased.empty()) return false;
    state.runs.erase(found);
    return true;
  }
  const bool of_other_attempt = event.attempt != 0 && event.attempt != run.attempt.number;
  if (of_other_attempt && !std::holds_alternative<ShimReleased>(event.body)) return false;
  if (event.shim_sequence != 0) {
    if (event.shim_sequence <= run.attempt.shim_sequence) return false; // replayed
    run.attempt.shim_sequence = event.shim_sequence;
  }
  return Reducer(state, run, event, now, notes).handle() || event.shim_sequence != 0;
}

} // namespace

Applied apply(State state, const Event& event, WallTime now) {
  const std::vector<Command> before = pending_commands(state);
  Applied result;
  result.ignored = !reduce(state, event, now, result.notes);
  if (!result.ignored) {
    const std::vector<Command> after = pending_commands(state);
    const auto has_timer = [](const std::vector<Command>& list, const RunId& run) {
      return std::any_of(list.begin(), list.end(), [&](const Command& c) {
        return c.kind == CommandKind::kArmTimer && c.run == run;
      });
    };
    for (const Command& c : before)
      if (c.kind == CommandKind::kArmTimer && !has_timer(after, c.run) &&
          !std::holds_alternative<TimerFired>(event.body)) {
        result.commands.push_back(c);
        result.commands.back().kind = CommandKind::kCancelTimer;
      }
    for (const Command& c : after)
      if (std::find(before.begin(), before.end(), c) == before.end()) result.commands.push_back(c);
  }
  result.state = std::move(state);
  return result;
}

} // namespace nsa::state
