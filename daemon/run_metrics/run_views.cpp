// A run, its attempts and its ranks as users see them.
#include "common/progress/phase.h"
#include "daemon/run_metrics/memory_figures.h"
#include "daemon/run_metrics/run_gates.h"
#include "daemon/run_metrics/run_record.h"
#include "daemon/run_metrics/shown_run.h"
#include "daemon/state/policy.h"

#include <algorithm>

namespace nsa::control {

std::vector<std::string> alarms_of(const state::Run& run, const RunRecord& record) {
  std::vector<std::string> alarms;
  if (const state::FailedCheckpoints& failed = run.failed_checkpoints; failed.count > 0) {
    const std::string since =
        run.best_step == 0 ? "the start" : "step " + std::to_string(run.best_step);
    const std::string which = failed.count == 1
                                  ? "that of step "
                                  : std::to_string(failed.count) + " failed, the last at step ";
    alarms.push_back("no checkpoint since " + since + ": " + which +
                     std::to_string(failed.last_step) + (failed.count == 1 ? " failed: " : ": ") +
                     failed.why);
  }
  if (record.loss.diverged(has_ended(run.phase))) alarms.push_back(record.loss.text());
  for (const auto& verdict : record.gates.newest())
    if (verdict && !verdict->passed) {
      const spec::GateRule& rule = record.gates.rules()[verdict->gate];
      alarms.push_back("gate \"" + rule.shown_name() +
                       "\" fails: " + gates::text_of(rule, *verdict));
    }
  return alarms;
}

namespace {

// Explains why a stop may take its whole time: a rank that is only observed is not killed and may
// not answer.
std::string unanswering(const state::Run& run) {
  if (run.hangs.empty()) return {};
  const state::Hang& hang = run.hangs.back();
  if (!hang.observed_only || hang.attempt != run.attempt.number) return {};
  return "; rank " + std::to_string(hang.rank) + " (" + text_of(hang.kind) + " in " +
         phase_text(hang.phase) + " at step " + std::to_string(hang.step) +
         ") is only observed and may not answer";
}

} // namespace

wire::RunSummary summary_of(const state::Run& run, const RunRecord& record) {
  wire::RunSummary s;
  static_cast<wire::NewestFigures&>(s) = record.last;
  s.alarms = alarms_of(run, record);
  // A completed run needs no last checkpoint if the run file says so.
  if (has_ended(run.phase) &&
      (run.phase != state::RunState::kCompleted || run.failed_checkpoints.count > 0)) {
    const uint64_t reached = std::max(run.reached_step, s.step);
    s.lost_steps = reached > run.best_step ? reached - run.best_step : 0;
  }
  s.id = run.id;
  s.name = record.row.name;
  s.user = record.row.user;
  s.state = run.phase;
  const bool waits =
      run.phase == state::RunState::kQueued || run.attempt.phase == state::AttemptPhase::kLaunching;
  s.reason = waits && !record.waiting.empty() ? record.waiting : run.reason;
  s.attempt = run.attempt.number;
  s.ranks = run.ranks;
  s.resumes = run.resumes;
  s.restarts = std::max(0, run.attempt.number - 1 - run.resumes - run.climbs);
  s.waits_until = 0;
  if (run.timer && (run.timer->kind == state::TimerKind::kStopGrace ||
                    run.timer->kind == state::TimerKind::kBackoff))
    s.waits_until = run.timer->due.nanoseconds;
  if (run.phase == state::RunState::kStopping) s.reason += unanswering(run);
  s.note = record.spec.run.note;
  s.tags = record.spec.run.tags;
  s.from = record.spec.origin.checkpoint;
  s.rung = state::standing_text(run.ladder, run.standing);
  s.hangs = static_cast<int>(run.hangs.size());
  s.steps = static_cast<uint64_t>(record.spec.train.steps);
  const double tokens_left = s.steps > s.step
                                 ? static_cast<double>(s.steps - s.step) *
                                       static_cast<double>(record.spec.tokens_per_step())
                                 : 0;
  s.eta_seconds =
      s.tokens_per_second > 0 && !has_ended(run.phase) ? tokens_left / s.tokens_per_second : 0;
  s.loss_trend = record.trend.points();
  s.gates = gate_views(record.gates);
  s.failure_class = {};
  if (run.phase == state::RunState::kFailed && run.attempt.failure)
    s.failure_class = *run.attempt.failure;
  s.submitted_at = run.submitted_at.nanoseconds;
  s.started_at = run.started_at.nanoseconds;
  s.ended_at = run.ended_at.nanoseconds;
  const spec::InjectSection& inject = record.spec.inject;
  if (inject.kind != spec::FaultKind::kNone) {
    s.inject = spec::text_of(inject.kind);
    if (inject.rank >= 0) s.inject += " on rank " + std::to_string(inject.rank);
    if (inject.step >= 0) s.inject += " at step " + std::to_string(inject.step);
    if (inject.rank < 0 || inject.step < 0)
      s.inject += " (seed " + std::to_string(inject.seed) + ")";
  }
  return s;
}

store::RunProgressRow progress_row(const state::Run& run, const RunRecord& record,
                                   const LiveAttempt* live) {
  store::RunProgressRow row;
  show(summary_of(run, record), row);
  row.hangs = hangs_json(run);
  row.memory = memory_of(record, live);
  return row;
}

store::AttemptRow attempt_row(const state::Run& run, const RunRecord& record) {
  const state::Attempt& a = run.attempt;
  store::AttemptRow row;
  row.run = run.id;
  row.token = a.token;
  row.attempt = a.number;
  row.state = name_of(a.phase);
  row.first_step = a.first_step;
  row.last_step = std::max(a.first_step, record.of_attempt == a.number ? record.last.step : 0);
  row.started_at = a.started_at.nanoseconds;
  row.ended_at = a.ended_at.nanoseconds;
  if (a.failure && a.phase == state::AttemptPhase::kEnded) {
    row.failure_class = *a.failure;
    row.reason = a.failure_text;
  }
  if (record.of_attempt == a.number) row.provenance = record.provenance;
  return row;
}

wire::RankView rank_view(const state::Run& run, const RunRecord& record, Rank rank,
                         const LiveAttempt* live) {
  const state::RankState& r = run.attempt.ranks.at(static_cast<size_t>(rank));
  wire::RankView view;
  view.rank = rank;
  view.pid = r.pid;
  view.state = r.exited ? (r.killed_by_shim ? wire::RankStatus::kKilled : wire::RankStatus::kExited)
               : r.greeted ? wire::RankStatus::kRunning
                           : wire::RankStatus::kStarting;
  if (run.device == spec::Device::kCuda && static_cast<size_t>(rank) < run.attempt.slots.size())
    view.gpu_uuid = run.attempt.slots[static_cast<size_t>(rank)];
  if (r.exited) view.exit = r.exit_known ? state::exit_text(r.exit_code, r.signal) : "not known";
  if (const auto found = record.ranks.find(rank); found != record.ranks.end()) {
    const RankInfo& info = found->second;
    view.device = info.device;
    view.compute_precision = info.compute_precision;
    view.step_seconds = info.step.step_seconds;
    view.exposed_communication_ratio = info.exposed_communication_ratio;
    view.start_up_seconds = info.start_up_seconds;
    for (const auto& [name, bytes] : kMemoryFigures<wire::RankView>)
      view.*bytes = static_cast<uint64_t>(info.figures.value_or_0(name));
  }
  if (live == nullptr || static_cast<size_t>(rank) >= live->samples().size()) return view;
  const auto& seen = live->samples()[static_cast<size_t>(rank)];
  view.step = seen.device.completed_step;
  view.last_progress_at = seen.moved_at.nanoseconds;
  if (seen.host && !r.exited) {
    view.phase = progress::phase_name(seen.host->phase);
    view.phase_age_seconds =
        to_seconds(MonotonicTime::now() - MonotonicTime{seen.host->phase_start_ns});
  }
  return view;
}

nlohmann::json hangs_json(const state::Run& run) {
  auto list = nlohmann::json::array();
  for (const state::Hang& h : run.hangs) {
    nlohmann::json hang = {{"rank", h.rank},
                           {"step", h.step},
                           {"phase", phase_name(h.phase)},
                           {"kind", h.kind},
                           {"attempt", h.attempt},
                           {"detect_seconds", h.detect_seconds},
                           {"found_at", wire::Time(h.found_at.nanoseconds)},
                           {"evidence_path", h.evidence_folder},
                           {"witnesses", h.witnesses},
                           {"nodes", h.nodes},
                           {"observed_only", h.observed_only},
                           {"recover_seconds", nullptr}};
    if (h.recover_seconds >= 0) hang["recover_seconds"] = h.recover_seconds;
    list.push_back(std::move(hang));
  }
  return list;
}

} // namespace nsa::control
