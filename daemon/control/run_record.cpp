#include "daemon/control/run_record.h"

#include "common/base/log.h"
#include "common/estimate/device_peak.h"
#include "common/estimate/estimate.h"
#include "common/progress/phase.h"
#include "common/spec/parse.h"
#include "common/spec/toggles.h"
#include "daemon/state/policy.h"

#include <algorithm>
#include <array>

namespace nsa::control {

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

// Over all ranks; 0 when that of one is not known.
double peak_flops(const RunRecord& record) {
  double sum = 0;
  for (const auto& [rank, info] : record.ranks) {
    const double rate = estimate::peak_bf16_flops(info.device);
    if (rate == 0) return 0;
    sum += rate;
  }
  return sum;
}

void note_peaks(Peaks& peaks, uint64_t resident, uint64_t allocated, uint64_t reserved) {
  peaks.resident_bytes = std::max(peaks.resident_bytes, resident);
  peaks.allocated_bytes = std::max(peaks.allocated_bytes, allocated);
  peaks.reserved_bytes = std::max(peaks.reserved_bytes, reserved);
}

// Smoothed over some ten records: one slow step must not make a figure jump.
double smoothed(double before, double now) {
  constexpr double kNewWeight = 0.1;
  return before == 0 ? now : (1 - kNewWeight) * before + kNewWeight * now;
}

// The mean of the first ten records, then a tenth of each new one. records: with this one.
void follow(double& mean, double now, int records) {
  mean += std::max(0.1, 1.0 / records) * (now - mean);
}

// Before `step` takes the place of the rank's record. An attempt's first record, which holds the
// start too, says nothing of the pace.
void note_pace(RankInfo& info, const wire::RankStep& step) {
  info.exposed_communication_seconds += step.exposed_communication_seconds;
  if (info.step.step == 0 || step.step <= info.step.step || step.step_seconds <= 0) return;
  const auto updates = static_cast<double>(step.step - info.step.step);
  const double waited = std::min(step.exposed_communication_seconds / updates, step.step_seconds);
  ++info.pace_records;
  follow(info.own_step_seconds, step.step_seconds - waited, info.pace_records);
  follow(info.exposed_communication_ratio, waited / step.step_seconds, info.pace_records);
}

// Before `step` takes the place of the rank's record, as above.
void note_exchange(RunRecord& record, const wire::RankStep& step, uint64_t step_before) {
  auto& open = record.exchange.open;
  // A rank may name any step: what does not come together soon never will.
  constexpr size_t kMostOpen = 64;
  if (open.size() >= kMostOpen && open.count(step.step) == 0) open.erase(open.begin());
  Exchange::Told& told = open[step.step];
  const double waited = step.exposed_communication_seconds;
  told.least_seconds = told.ranks == 0 ? waited : std::min(told.least_seconds, waited);
  if (++told.ranks < record.spec.parallel.ranks) return;
  const double least = told.least_seconds;
  open.erase(open.begin(), open.upper_bound(step.step)); // older ones: a rank's record was lost
  record.counters.exposed_communication_seconds += least;
  if (step_before == 0 || step.step <= step_before || step.step_seconds <= 0) return;
  const double time = static_cast<double>(step.step - step_before) * step.step_seconds;
  follow(record.last.exposed_communication_ratio, std::min(1.0, least / time),
         ++record.exchange.pace_records);
}

} // namespace

void note_step(RunRecord& record, const wire::RankStep& step) {
  RankInfo& info = record.ranks[step.rank];
  note_pace(info, step);
  note_exchange(record, step, info.step.step);
  info.step = step;
  note_peaks(record.peaks, step.resident_bytes, step.peak_bytes, step.reserved_bytes);
  info.step_seconds.observe(step.step_seconds);
  for (const auto& [phase, seconds] : step.phase_seconds)
    if (progress::phase_from_name(phase)) info.phase_seconds[phase] += seconds;
  if (!step.start_up_seconds.empty()) info.start_up_seconds = step.start_up_seconds;
  if (step.rank != 0) return;
  wire::RunSummary& s = record.last;
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
      updates * static_cast<uint64_t>(record.spec.train.accumulate * record.spec.parallel.ranks);
  c.flops += static_cast<double>(updates) * estimate::arithmetic(record.spec).total();
  c.clipped_steps += step.clipped_steps;
  c.data_wait_seconds += step.data_wait_seconds;
  for (const auto& [phase, seconds] : step.phase_seconds)
    c.phase_seconds[phase == "data"                                  ? "data-wait"
                    : phase == "restore"                             ? "checkpoint"
                    : phase == "checkpoint" || phase == "evaluation" ? phase
                                                                     : "train"] += seconds;
  c.gradient_norm = step.gradient_norm;
  c.learning_rate = step.learning_rate;
  for (const auto& [name, gate] : step.gates)
    c.gates[name] = gate;
  record.reached_step = std::max(record.reached_step, step.step);
}

namespace {

nlohmann::json to_json(const metrics::Histogram& h) {
  return {{"counts", h.counts()}, {"sum", h.sum()}};
}

void restore(metrics::Histogram& h, const nlohmann::json& json) {
  if (json.contains("counts"))
    (void)h.restore(json["counts"].get<std::vector<uint64_t>>(), json.value("sum", 0.0));
}

template <class T> void restore(T& value, const nlohmann::json& json, const char* key) {
  if (json.contains(key)) value = json[key].get<T>();
}

// What is kept as it is. Sample: metrics::RunSample, const or not.
template <class Sample, class Visit> void for_each_counter(Sample& c, Visit visit) {
  visit("restarts", c.restarts);
  visit("hangs", c.hangs);
  visit("lost_steps", c.lost_steps);
  visit("phase_seconds", c.phase_seconds);
  visit("steps", c.steps);
  visit("tokens", c.tokens);
  visit("nonfinite_steps", c.nonfinite_steps);
  visit("clipped_steps", c.clipped_steps);
  visit("flops", c.flops);
  visit("batches", c.batches);
  visit("data_wait_seconds", c.data_wait_seconds);
  visit("exposed_communication_seconds", c.exposed_communication_seconds);
  visit("checkpoints_verified", c.checkpoints_verified);
  visit("checkpoint_last_step", c.checkpoint_last_step);
  visit("checkpoint_bytes", c.checkpoint_bytes);
  visit("checkpoint_blocked_seconds", c.checkpoint_blocked_seconds);
  visit("checkpoint_failures", c.checkpoint_failures);
}

} // namespace

nlohmann::json memory_of(const RunRecord& record, const AttemptSupervisor* supervisor) {
  const metrics::RunSample& c = record.counters;
  auto recovery = nlohmann::json::object(), ranks = nlohmann::json::object();
  for (const auto& [name, histogram] : c.recovery_seconds)
    recovery[name] = to_json(histogram);
  for (const auto& [rank, info] : record.ranks)
    ranks[std::to_string(rank)] = {
        {"step_seconds", to_json(info.step_seconds)},
        {"phase_seconds", info.phase_seconds},
        {"exposed_communication_seconds", info.exposed_communication_seconds},
        {"exposed_communication_ratio", info.exposed_communication_ratio},
        {"own_step_seconds", info.own_step_seconds},
        {"pace_records", info.pace_records}};
  nlohmann::json memory = {
      {"learned", supervisor != nullptr ? supervisor->learned() : record.learned},
      {"recovery_seconds", recovery},
      {"peaks",
       {record.peaks.resident_bytes, record.peaks.allocated_bytes, record.peaks.reserved_bytes}},
      {"checkpoint_last_success", c.checkpoint_last_success.value_or(WallTime{}).nanoseconds},
      {"checkpoint_write_seconds", to_json(c.checkpoint_write_seconds)},
      {"exchange_pace_records", record.exchange.pace_records},
      {"loss", record.loss},
      {"ranks", ranks}};
  for_each_counter(c, [&](const char* key, const auto& value) { memory[key] = value; });
  return memory;
}

void recall(RunRecord& record, const nlohmann::json& memory) {
  if (!memory.is_object()) return;
  metrics::RunSample& c = record.counters;
  try {
    restore(record.learned, memory, "learned");
    restore(record.loss, memory, "loss");
    for_each_counter(c, [&](const char* key, auto& value) { restore(value, memory, key); });
    restore(record.exchange.pace_records, memory, "exchange_pace_records");
    std::array<uint64_t, 3> peaks{};
    restore(peaks, memory, "peaks");
    record.peaks = {peaks[0], peaks[1], peaks[2]};
    if (const int64_t at = memory.value("checkpoint_last_success", int64_t{0}); at != 0)
      c.checkpoint_last_success = WallTime{at};
    const nlohmann::json none = nlohmann::json::object();
    restore(c.checkpoint_write_seconds, memory.value("checkpoint_write_seconds", none));
    const nlohmann::json recovery = memory.value("recovery_seconds", none);
    for (const auto& [name, histogram] : recovery.items())
      restore(c.recovery_seconds.try_emplace(name, metrics::recovery_histogram()).first->second,
              histogram);
    const nlohmann::json ranks = memory.value("ranks", none);
    for (const auto& [rank, kept] : ranks.items()) {
      RankInfo& info = record.ranks[std::stoi(rank)];
      restore(info.step_seconds, kept.value("step_seconds", none));
      restore(info.phase_seconds, kept, "phase_seconds");
      restore(info.exposed_communication_seconds, kept, "exposed_communication_seconds");
      restore(info.exposed_communication_ratio, kept, "exposed_communication_ratio");
      restore(info.own_step_seconds, kept, "own_step_seconds");
      restore(info.pace_records, kept, "pace_records");
    }
  } catch (const std::exception& e) {
    // Counters are not worth a run: it is taken up with what could be read.
    log::warning("control", "a run's counters cannot be read",
                 {{"run", record.row.id}, {"why", e.what()}});
  }
}

void recall(wire::RankView& view, const nlohmann::json& memory) {
  const nlohmann::json::json_pointer place("/ranks/" + std::to_string(view.rank) +
                                           "/exposed_communication_ratio");
  if (memory.is_object() && memory.contains(place) && memory[place].is_number())
    view.exposed_communication_ratio = memory[place].get<double>();
}

void note_event(RunRecord& record, const state::EventBody& body, WallTime at) {
  metrics::RunSample& c = record.counters;
  if (const auto* e = std::get_if<wire::RankEvaluation>(&body)) {
    record.last.heldout_loss = e->loss;
    record.last.has_heldout_loss = true;
  } else if (const auto* m = std::get_if<wire::RankMemory>(&body)) {
    record.ranks[m->rank].memory = *m;
    note_peaks(record.peaks, m->resident_bytes, m->peak_bytes, m->reserved_bytes);
  } else if (const auto* exited = std::get_if<wire::RankExited>(&body)) {
    note_peaks(record.peaks, exited->max_resident_bytes, 0, 0);
  } else if (const auto* n = std::get_if<wire::RankNonFinite>(&body)) {
    if (n->action != "report") ++c.nonfinite_steps;
  } else if (const auto* hang = std::get_if<state::HangFound>(&body)) {
    ++c.hangs;
    c.recovery_seconds.try_emplace("detect", metrics::recovery_histogram())
        .first->second.observe(hang->detect_seconds);
  } else if (const auto* k = std::get_if<wire::RankCheckpoint>(&body); k && k->error.empty()) {
    c.checkpoint_last_success = at;
    c.checkpoint_last_step = k->step;
    c.checkpoint_bytes = k->bytes;
    ++c.checkpoints_verified; // the worker reports it when it has read it back
    c.checkpoint_blocked_seconds += k->stall_seconds;
    c.checkpoint_write_seconds.observe(k->write_seconds);
  }
}

std::vector<store::ToggleRow> requested_toggles(const RunRecord& record, AttemptNumber attempt) {
  std::vector<store::ToggleRow> rows;
  const auto resolved = spec::resolve_toggles(spec::requested_toggles(record.spec));
  if (!resolved) return rows;
  const auto asked =
      spec::parse_run_file(record.row.run_file, record.row.file_name, record.row.overrides)
          .spec.toggles;
  for (const auto& [name, value] : *resolved) {
    // What the run file does not give and the spec has, nsad's environment added at submission.
    std::string origin = asked.count(name) != 0                 ? "file"
                         : record.spec.toggles.count(name) != 0 ? "host"
                                                                : "default";
    for (const std::string& pair : record.row.overrides)
      if (pair.starts_with("toggles." + name + "=")) origin = "--set";
    rows.push_back({record.row.id, {attempt, name, value, "", origin}});
  }
  return rows;
}

// Why a stop may take its whole time: who is only observed is not killed, and may not answer.
static std::string unanswering(const state::Run& run) {
  if (run.hangs.empty()) return {};
  const state::Hang& hang = run.hangs.back();
  if (!hang.observed_only || hang.attempt != run.attempt.number) return {};
  return "; rank " + std::to_string(hang.rank) + " (" + hang.kind + " in " + hang.phase +
         " at step " + std::to_string(hang.step) + ") is only observed and may not answer";
}

wire::RunSummary summary_of(const state::Run& run, const RunRecord& record) {
  wire::RunSummary s = record.last;
  s.alarms = alarms_of(run, record);
  // A run that has completed wants no checkpoint where the run file says so.
  if (has_ended(run.phase) &&
      (run.phase != state::RunPhase::kCompleted || run.failed_checkpoints.count > 0)) {
    const uint64_t reached = std::max(run.reached_step, record.last.step);
    s.lost_steps = reached > run.best_step ? reached - run.best_step : 0;
  }
  s.id = run.id;
  s.name = record.row.name;
  s.user = record.row.user;
  s.state = run_phase_name(run.phase);
  s.reason = run.phase == state::RunPhase::kQueued && !record.waiting.empty() ? record.waiting
                                                                              : run.reason;
  s.attempt = run.attempt.number;
  s.ranks = run.ranks;
  s.resumes = run.resumes;
  s.restarts = std::max(0, run.attempt.number - 1 - run.resumes);
  s.waits_until = 0;
  if (run.timer && (run.timer->kind == state::TimerKind::kStopGrace ||
                    run.timer->kind == state::TimerKind::kBackoff))
    s.waits_until = run.timer->due.nanoseconds;
  if (run.phase == state::RunPhase::kStopping) s.reason += unanswering(run);
  s.note = record.spec.run.note;
  s.tags = record.spec.run.tags;
  s.hangs = static_cast<int>(run.hangs.size());
  s.steps = static_cast<uint64_t>(record.spec.train.steps);
  const double tokens_left = s.steps > s.step
                                 ? static_cast<double>(s.steps - s.step) *
                                       static_cast<double>(record.spec.tokens_per_step())
                                 : 0;
  s.eta_seconds =
      s.tokens_per_second > 0 && !has_ended(run.phase) ? tokens_left / s.tokens_per_second : 0;
  s.loss_trend = record.trend.points();
  s.submitted_at = run.submitted_at.nanoseconds;
  s.started_at = run.started_at.nanoseconds;
  s.ended_at = run.ended_at.nanoseconds;
  const spec::InjectSection& inject = record.spec.inject;
  if (inject.kind != "none") {
    s.inject = inject.kind;
    if (inject.rank >= 0) s.inject += " on rank " + std::to_string(inject.rank);
    if (inject.step >= 0) s.inject += " at step " + std::to_string(inject.step);
    if (inject.rank < 0 || inject.step < 0)
      s.inject += " (seed " + std::to_string(inject.seed) + ")";
  }
  return s;
}

wire::AttemptView attempt_view(const state::Run& run, const RunRecord& record) {
  const state::Attempt& a = run.attempt;
  wire::AttemptView view;
  view.attempt = a.number;
  view.state = attempt_phase_name(a.phase);
  view.first_step = a.first_step;
  view.last_step = std::max(a.first_step, record.of_attempt == a.number ? record.last.step : 0);
  view.started_at = a.started_at.nanoseconds;
  view.ended_at = a.ended_at.nanoseconds;
  if (a.failure && a.phase == state::AttemptPhase::kEnded) {
    view.failure_class = failure_class_name(*a.failure);
    view.reason = a.failure_text;
  }
  if (record.of_attempt == a.number) view.provenance = record.provenance;
  return view;
}

wire::RankView rank_view(const state::Run& run, const RunRecord& record, Rank rank,
                         const AttemptSupervisor* supervisor) {
  const state::RankState& r = run.attempt.ranks.at(static_cast<size_t>(rank));
  wire::RankView view;
  view.rank = rank;
  view.pid = r.pid;
  view.state = r.exited    ? (r.killed_by_shim ? "killed" : "exited")
               : r.greeted ? "running"
                           : "starting";
  if (r.exited) view.exit = r.exit_known ? state::exit_text(r.exit_code, r.signal) : "not known";
  if (const auto found = record.ranks.find(rank); found != record.ranks.end()) {
    const RankInfo& info = found->second;
    view.device = info.device;
    view.compute_precision = info.compute_precision;
    view.step_seconds = info.step.step_seconds;
    view.exposed_communication_ratio = info.exposed_communication_ratio;
    view.start_up_seconds = info.start_up_seconds;
    const bool from_step = info.step.resident_bytes != 0;
    view.resident_bytes = from_step ? info.step.resident_bytes : info.memory.resident_bytes;
    view.allocated_bytes = from_step ? info.step.allocated_bytes : info.memory.allocated_bytes;
    view.reserved_bytes = from_step ? info.step.reserved_bytes : info.memory.reserved_bytes;
    view.peak_bytes = std::max(info.step.peak_bytes, info.memory.peak_bytes);
  }
  if (supervisor == nullptr || static_cast<size_t>(rank) >= supervisor->places().size())
    return view;
  const auto& place = supervisor->places()[static_cast<size_t>(rank)];
  view.step = place.device.completed_step;
  if (place.host && !r.exited) {
    view.phase = progress::phase_name(place.host->phase);
    view.phase_age_seconds =
        to_seconds(MonotonicTime::now() - MonotonicTime{place.host->phase_start_ns});
  }
  return view;
}

nlohmann::json hangs_json(const state::Run& run) {
  auto list = nlohmann::json::array();
  for (const state::Hang& h : run.hangs) {
    nlohmann::json hang = {{"rank", h.rank},
                           {"step", h.step},
                           {"phase", h.phase},
                           {"kind", h.kind},
                           {"attempt", h.attempt},
                           {"detect_seconds", h.detect_seconds},
                           {"found_at", wire::Time(h.found_at.nanoseconds)},
                           {"evidence_path", h.evidence_folder},
                           {"witnesses", h.witnesses},
                           {"observed_only", h.observed_only},
                           {"recover_seconds", nullptr}};
    if (h.recover_seconds >= 0) hang["recover_seconds"] = h.recover_seconds;
    list.push_back(std::move(hang));
  }
  return list;
}

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
  // A stop waits for the step in flight and for a checkpoint.
  p.stop_grace_seconds = spec.hang.checkpoint_seconds + 30;
  p.jitter_seed = jitter_seed;
  return p;
}

state::HangPolicy hang_policy_of(const spec::RunSpec& spec) {
  const spec::HangSection& h = spec.hang;
  return {h.floor_seconds,     h.ceiling_seconds,    h.factor,
          h.start_up_seconds,  h.first_step_seconds, h.checkpoint_seconds,
          h.evaluation_seconds};
}

metrics::RunSample metrics_of(const state::Run& run, const RunRecord& record,
                              const AttemptSupervisor* supervisor) {
  metrics::RunSample sample = record.counters;
  const wire::RunSummary summary = summary_of(run, record);
  sample.id = run.id;
  sample.name = record.row.name;
  sample.user = record.row.user;
  sample.model = "nsa";
  sample.attention = spec::text_of(record.spec.model.attention);
  sample.spec_digest = record.row.spec_digest;
  sample.state = summary.state;
  sample.submitted = run.submitted_at;
  sample.started = run.started_at;
  sample.planned_steps = summary.steps;
  sample.attempt = run.attempt.number;
  sample.step = summary.step;
  if (summary.eta_seconds > 0) sample.eta = WallTime::now() + from_seconds(summary.eta_seconds);
  if (summary.has_loss) sample.loss = summary.loss;
  if (summary.has_heldout_loss) sample.heldout_loss = summary.heldout_loss;
  if (summary.tokens_per_second > 0) sample.tokens_per_second = summary.tokens_per_second;
  if (const double peak = peak_flops(record); peak > 0 && summary.tokens_per_second > 0)
    sample.mfu_ratio = estimate::arithmetic(record.spec).total() * summary.tokens_per_second /
                       static_cast<double>(record.spec.tokens_per_step()) / peak;
  sample.checkpoint_interval_steps = static_cast<double>(record.spec.checkpoint.interval_steps);
  double fastest = 0;
  for (const auto& [rank, info] : record.ranks)
    if (info.own_step_seconds > 0 && (fastest == 0 || info.own_step_seconds < fastest))
      fastest = info.own_step_seconds;
  for (size_t r = 0; r < run.attempt.ranks.size(); ++r) {
    const wire::RankView view = rank_view(run, record, static_cast<Rank>(r), supervisor);
    metrics::RankSample& rank = sample.ranks.emplace_back();
    rank.rank = view.rank;
    rank.gpu = run.device == "cuda" ? std::to_string(r) : "cpu";
    if (run.device == "cuda" && r < run.slots.size()) rank.gpu_uuid = run.slots[r];
    rank.up = run.attempt.ranks[r].started && !run.attempt.ranks[r].exited;
    rank.step = view.step;
    rank.resident_bytes = view.resident_bytes;
    rank.allocated_bytes = view.allocated_bytes;
    rank.reserved_bytes = view.reserved_bytes;
    rank.peak_bytes = view.peak_bytes;
    if (supervisor != nullptr && r < supervisor->places().size())
      rank.last_progress = supervisor->places()[r].last_progress;
    if (const auto info = record.ranks.find(view.rank); info != record.ranks.end()) {
      rank.step_seconds = info->second.step_seconds;
      rank.phase_seconds = info->second.phase_seconds;
      rank.exposed_communication_seconds = info->second.exposed_communication_seconds;
      rank.own_step_seconds = info->second.own_step_seconds;
      if (rank.own_step_seconds > 0) rank.perf_score_ratio = fastest / rank.own_step_seconds;
    }
  }
  return sample;
}

} // namespace nsa::control
