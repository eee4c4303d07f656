#include "daemon/run_metrics/run_record.h"

#include "common/estimate/estimate.h"
#include "common/progress/phase.h"
#include "common/spec/spec_json.h"
#include "daemon/run_metrics/memory_figures.h"

#include <algorithm>

namespace nsa::control {

Status follow_ladder(const state::Run& run, RunRecord& record) {
  if (record.rungs == run.standing.active) return {};
  auto base = spec::from_json(record.row.spec);
  if (!base)
    return fail(ErrorCode::kCorrupt, "the stored spec of run " + run.id + ": " + base.error().what);
  record.rungs = run.standing.active;
  record.fallback = spec::overrides_of(run.ladder, record.rungs);
  record.spec = spec::on_rungs(*base, run.ladder, record.rungs);
  return {};
}

void Trend::add(double value) {
  if (seen_++ % every_ != 0) return;
  if (points_.size() == kPoints) {
    for (size_t i = 0; i < kPoints / 2; ++i)
      points_[i] = points_[2 * i];
    points_.resize(kPoints / 2);
    every_ *= 2;
  }
  points_.push_back(value);
}

namespace {

void note_peaks(Peaks& peaks, uint64_t resident, uint64_t allocated, uint64_t reserved) {
  peaks.resident_bytes = std::max(peaks.resident_bytes, resident);
  peaks.allocated_bytes = std::max(peaks.allocated_bytes, allocated);
  peaks.reserved_bytes = std::max(peaks.reserved_bytes, reserved);
}

// Moving average over about ten records, so that one slow step does not make a figure jump.
double smoothed(double before, double now) {
  constexpr double kNewWeight = 0.1;
  return before == 0 ? now : (1 - kNewWeight) * before + kNewWeight * now;
}

// The mean of the first ten records; after that, each new record has a weight of a tenth. `records`
// includes this one.
void follow(double& mean, double now, int records) {
  mean += std::max(0.1, 1.0 / records) * (now - mean);
}

// Must be called before `step` replaces the rank's record. An attempt's first record includes the
// start, so it says nothing about the pace.
void note_pace(RankInfo& info, const wire::RankStep& step) {
  info.figures.add(step);
  if (info.step.step == 0 || step.step <= info.step.step || step.step_seconds <= 0) return;
  const auto updates = static_cast<double>(step.step - info.step.step);
  const double waited = std::min(step.exposed_communication_seconds / updates, step.step_seconds);
  ++info.pace_records;
  follow(info.own_step_seconds, step.step_seconds - waited, info.pace_records);
  follow(info.exposed_communication_ratio, waited / step.step_seconds, info.pace_records);
}

// Must be called before `step` replaces the rank's record, as above.
void note_exchange(RunRecord& record, const wire::RankStep& step, uint64_t step_before) {
  auto& open = record.exchange.open;
  // A rank may name any step. A step whose records do not come together soon never completes.
  constexpr size_t kMostOpen = 64;
  if (open.size() >= kMostOpen && open.count(step.step) == 0) open.erase(open.begin());
  Exchange::Told& told = open[step.step];
  const double waited = step.exposed_communication_seconds;
  told.least_seconds = told.ranks == 0 ? waited : std::min(told.least_seconds, waited);
  if (++told.ranks < record.spec.parallel.ranks) return;
  const double least = told.least_seconds;
  // Older steps are incomplete, because a rank's record was lost.
  open.erase(open.begin(), open.upper_bound(step.step));
  record.counters.exposed_communication_seconds += least;
  if (step_before == 0 || step.step <= step_before || step.step_seconds <= 0) return;
  const double time = static_cast<double>(step.step - step_before) * step.step_seconds;
  follow(record.last.exposed_communication_ratio, std::min(1.0, least / time),
         ++record.exchange.pace_records);
}

} // namespace

void add_phases(std::map<std::string, double>& sums, const std::map<std::string, double>& seconds) {
  for (const auto& [name, value] : seconds)
    if (const auto phase = progress::phase_from_name(name))
      sums[std::string(progress::phase_name(*phase))] += value;
}

namespace {

// Start-up of a later attempt counts as restart time.
progress::TimeUse use_of(const std::string& phase_name, AttemptNumber attempt) {
  const auto phase = progress::phase_from_name(phase_name);
  if (!phase) return progress::TimeUse::kTrain;
  if (phase == progress::Phase::kStartUp && attempt > 1) return progress::TimeUse::kRestart;
  return progress::phase_info(*phase).counts_as;
}

std::optional<progress::TimeUse> wait_of(const state::Run& run) {
  using enum state::AttemptPhase;
  if (has_ended(run.phase)) return std::nullopt;
  if (run.phase == state::RunState::kQueued) return progress::TimeUse::kIdle;
  const state::AttemptPhase phase = run.attempt.phase;
  if (phase == kKilling || phase == kEnded) return progress::TimeUse::kRestart;
  if (phase != kChoosing && phase != kLaunching) return std::nullopt;
  return run.attempt.number > 1 ? progress::TimeUse::kRestart : progress::TimeUse::kIdle;
}

} // namespace

void note_wait(RunRecord& record, const state::Run& run, WallTime now) {
  const auto use = wait_of(run);
  Wait& wait = record.wait;
  if (use == wait.use) return;
  if (wait.use)
    record.counters.phase_seconds[text_of(*wait.use)] +=
        std::max(0.0, to_seconds(now - wait.since));
  wait = {use, now};
}

void note_step(RunRecord& record, const wire::RankStep& step) {
  RankInfo& info = record.ranks[step.rank];
  note_pace(info, step);
  note_exchange(record, step, info.step.step);
  info.step = step;
  note_peaks(record.peaks, step.resident_bytes, step.peak_bytes, step.reserved_bytes);
  info.step_seconds.observe(step.step_seconds);
  add_phases(info.phase_seconds, step.phase_seconds);
  if (!step.start_up_seconds.empty()) info.start_up_seconds = step.start_up_seconds;
  if (step.rank != 0) return;
  wire::NewestFigures& s = record.last;
  // A record may stand for several updates (train.log_interval_steps), and one may have been lost.
  const uint64_t updates = step.step > s.step ? step.step - s.step : 1;
  s.step = step.step;
  s.tokens = step.tokens;
  s.loss = step.loss;
  s.has_loss = true;
  s.tokens_per_second = smoothed(s.tokens_per_second, step.tokens_per_second);
  if (const double time = static_cast<double>(updates) * step.step_seconds; time > 0)
    s.data_wait_ratio = std::min(1.0, step.data_wait_seconds / time);
  record.trend.add(step.loss);
  record.loss.add(step.loss);
  metrics::RunSample& c = record.counters;
  c.steps += updates;
  c.tokens += updates * static_cast<uint64_t>(record.spec.tokens_per_step());
  c.batches +=
      updates * static_cast<uint64_t>(record.spec.train.accumulate * record.spec.data_ranks());
  c.flops += static_cast<double>(updates) * estimate::arithmetic(record.spec).total();
  for (const auto& [name, seconds] : step.phase_seconds)
    c.phase_seconds[text_of(use_of(name, record.of_attempt))] += seconds;
  c.figures.add(step);
  for (size_t i = 0; i < wire::kLayerMetrics.size(); ++i)
    for (const auto& [key, value] : step.*wire::kLayerMetrics[i].at)
      c.layers[i][key] = value;
  record.reached_step = std::max(record.reached_step, step.step);
}

void note_event(RunRecord& record, const state::EventBody& body, WallTime at) {
  metrics::RunSample& c = record.counters;
  if (const auto* e = std::get_if<wire::RankEvaluation>(&body)) {
    record.last.heldout_loss = e->loss;
    record.last.has_heldout_loss = true;
  } else if (const auto* m = std::get_if<wire::RankMemory>(&body)) {
    metrics::StepFigures& figures = record.ranks[m->rank].figures;
    for (const auto& [name, bytes] : kMemoryFigures<wire::RankMemory>)
      figures[name] = static_cast<double>(m->*bytes);
    note_peaks(record.peaks, m->resident_bytes, m->peak_bytes, m->reserved_bytes);
  } else if (const auto* exited = std::get_if<wire::RankExited>(&body)) {
    note_peaks(record.peaks, exited->max_resident_bytes, 0, 0);
  } else if (const auto* n = std::get_if<wire::RankNonFinite>(&body)) {
    if (n->action != wire::NonFiniteAction::kReport) ++c.nonfinite_steps;
  } else if (const auto* hang = std::get_if<state::HangFound>(&body)) {
    ++c.hangs;
    c.recovery_seconds
        .try_emplace(text_of(metrics::RecoveryPhase::kDetect), metrics::recovery_histogram())
        .first->second.observe(hang->detect_seconds);
  } else if (const auto* k = std::get_if<wire::RankCheckpoint>(&body); k && k->error.empty()) {
    c.checkpoint_last_success = at;
    c.checkpoint_last_step = k->step;
    c.checkpoint_bytes = k->bytes;
    ++c.checkpoints_verified; // the worker reports a checkpoint after it has read it back
    c.checkpoint_blocked_seconds += k->stall_seconds;
    c.checkpoint_write_seconds.observe(k->write_seconds);
  }
}

} // namespace nsa::control
