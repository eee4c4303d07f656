#include "daemon/run_metrics/run_gates.h"

#include "common/wire/words.h"
#include "daemon/run_metrics/run_metrics.h"

#include <algorithm>
#include <cmath>

namespace nsa::control {

using spec::GateMetric;

namespace {

constexpr double kGigabyte = 1e9;

void note_memory(const RunRecord& record, gates::Figures& figures) {
  uint64_t resident = 0, reserved = 0;
  for (const auto& [rank, info] : record.ranks) {
    resident = std::max(resident, info.step.resident_bytes);
    reserved = std::max(reserved, info.step.reserved_bytes);
  }
  if (resident > 0) figures[GateMetric::kResidentGb] = static_cast<double>(resident) / kGigabyte;
  if (reserved > 0) figures[GateMetric::kReservedGb] = static_cast<double>(reserved) / kGigabyte;
}

// Same definition as nsa_run_step_skew_ratio.
std::optional<double> skew_of(const RunRecord& record) {
  std::vector<double> seconds;
  for (const auto& [rank, info] : record.ranks)
    if (info.own_step_seconds > 0) seconds.push_back(info.own_step_seconds);
  if (seconds.size() < 2) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  return seconds.back() / seconds[(seconds.size() - 1) / 2];
}

// A rank's pace needs two of its records, and they may come later than those of rank 0.
bool is_too_early_for_pace(const RunRecord& record) {
  constexpr int kEarlyRecords = 4;
  const auto rank0 = record.ranks.find(0);
  return rank0 == record.ranks.end() || rank0->second.pace_records < kEarlyRecords;
}

// Takes the worst layer.
void note_layers(const wire::RankStep& step, gates::Figures& figures) {
  std::optional<double>& entropy = figures[GateMetric::kGateEntropy];
  std::optional<double>& largest = figures[GateMetric::kLargestGate];
  for (const auto& [layer, gates] : layer_gates(step)) {
    entropy = std::min(entropy.value_or(gates.entropy), gates.entropy);
    largest = std::max(largest.value_or(gates.largest), gates.largest);
  }
}

std::optional<double> hottest(const state::Run& run, const std::vector<metrics::GpuSample>& gpus) {
  std::optional<double> highest;
  for (const metrics::GpuSample& gpu : gpus) {
    const bool ours = std::find(run.slots.begin(), run.slots.end(), gpu.uuid) != run.slots.end();
    if (ours && gpu.temperature_celsius)
      highest = std::max(highest.value_or(-INFINITY), *gpu.temperature_celsius);
  }
  return highest;
}

// Projects the end of the run from the rate of this record.
void note_end(const GateSources& from, gates::Figures& figures) {
  const spec::RunSpec& spec = from.record.spec;
  const double rate = from.step.tokens_per_second;
  if (rate <= 0) return;
  const auto tokens_a_step = static_cast<double>(spec.tokens_per_step());
  const double left_steps =
      std::max(0.0, static_cast<double>(spec.train.steps) - static_cast<double>(from.step.step));
  const double left = left_steps * tokens_a_step / rate;
  const double hours = (to_seconds(from.now - from.run.started_at) + left) / 3600;
  figures[GateMetric::kTotalHours] = hours;
  const spec::PlanSection& plan = spec.plan;
  double planned = plan.hours;
  if (planned == 0 && plan.tokens_per_second > 0)
    planned = static_cast<double>(spec.train.steps) * tokens_a_step / plan.tokens_per_second / 3600;
  if (planned > 0) figures[GateMetric::kTotalHoursRatio] = hours / planned;
  const double held =
      from.record.spent.seconds + to_seconds(from.now - from.run.attempt.started_at) + left;
  if (spec.cost.per_gpu_hour > 0)
    figures[GateMetric::kCost] =
        held / 3600 * static_cast<double>(std::max<size_t>(1, from.run.slots.size())) *
        spec.cost.per_gpu_hour; // a run on a rung with fewer ranks still holds all its slots
}

} // namespace

gates::Figures figures_of(const GateSources& from) {
  const RunRecord& record = from.record;
  const double rate = from.step.tokens_per_second;
  gates::Figures figures;
  if (rate > 0) figures[GateMetric::kTokensPerSecond] = rate;
  if (const double planned = record.spec.plan.tokens_per_second; planned > 0 && rate > 0)
    figures[GateMetric::kRateRatio] = rate / planned;
  figures[GateMetric::kMfuRatio] = mfu_ratio(record, rate);
  figures[GateMetric::kLoss] = from.step.loss;
  figures[GateMetric::kGradientNorm] = from.step.gradient_norm;
  figures[GateMetric::kRankSkewRatio] = skew_of(record);
  if (!figures[GateMetric::kRankSkewRatio] && is_too_early_for_pace(record))
    figures.set_not_yet_known(GateMetric::kRankSkewRatio);
  figures[GateMetric::kDataWaitSeconds] =
      from.step.data_wait_seconds / static_cast<double>(std::max<uint64_t>(1, from.updates));
  const WallTime checkpoint = std::max(record.counters.checkpoint_last_success.value_or(WallTime{}),
                                       from.run.attempt.started_at);
  figures[GateMetric::kCheckpointAgeSeconds] = to_seconds(from.now - checkpoint);
  figures[GateMetric::kTemperatureCelsius] = hottest(from.run, from.gpus);
  note_memory(record, figures);
  note_layers(from.step, figures);
  note_end(from, figures);
  return figures;
}

std::vector<wire::GateView> gate_views(const gates::Evaluator& gates) {
  std::vector<wire::GateView> views;
  for (size_t i = 0; i < gates.rules().size(); ++i) {
    const spec::GateRule& rule = gates.rules()[i];
    wire::GateView& view = views.emplace_back();
    view.name = rule.shown_name();
    view.metric = spec::name_of(rule.metric);
    view.over = spec::name_of(rule.over);
    view.action = spec::name_of(rule.action);
    view.bound = spec::bound_text(rule);
    view.first_step = static_cast<uint64_t>(rule.first_step);
    view.window_steps = static_cast<uint64_t>(rule.window_steps);
    view.state = wire::GateState::kWaiting;
    if (const auto& verdict = gates.newest()[i]) {
      view.state = verdict->passed ? wire::GateState::kPassed : wire::GateState::kFailed;
      if (verdict->value) view.value = *verdict->value;
      view.from_step = verdict->first_step;
      view.to_step = verdict->last_step;
    }
  }
  return views;
}

void RunMetrics::add_verdicts(const state::Run& run, const RunRecord& record,
                              const std::vector<gates::Verdict>& verdicts) {
  for (const gates::Verdict& verdict : verdicts) {
    loop_.touch(run.id); // users see its newest value
    if (!verdict.changed) continue;
    const spec::GateRule& rule = record.gates.rules()[verdict.gate];
    state::GateJudged judged;
    judged.name = rule.shown_name();
    judged.metric = rule.metric;
    judged.action = rule.action;
    judged.passed = verdict.passed;
    judged.text = gates::text_of(rule, verdict);
    judged.value = verdict.value;
    if (!std::isnan(rule.at_least)) judged.at_least = rule.at_least;
    if (!std::isnan(rule.at_most)) judged.at_most = rule.at_most;
    judged.first_step = verdict.first_step;
    judged.last_step = verdict.last_step;
    verdicts_.push_back({run.id, run.attempt.number, 0, std::move(judged)});
  }
}

void RunMetrics::judge(const state::Run& run, RunRecord& record, uint64_t step,
                       const gates::Figures& figures) {
  add_verdicts(run, record, record.gates.observe(step, figures));
}

// Feeds the gates with evaluations and the last step, and adds the ended attempt's time to the
// cost.
void RunMetrics::note_gates(const state::State& state, const state::Event& event,
                            RunRecord& record) {
  const auto found = state.runs.find(event.run);
  if (found == state.runs.end()) return;
  const state::Run& run = found->second;
  const state::Attempt& attempt = run.attempt;
  if (attempt.phase == state::AttemptPhase::kEnded && record.spent.up_to < attempt.number)
    record.spent = {record.spent.seconds + to_seconds(attempt.ended_at - attempt.started_at),
                    attempt.number};
  if (event.attempt != attempt.number) return;
  if (const auto* evaluation = std::get_if<wire::RankEvaluation>(&event.body)) {
    gates::Figures figures;
    figures[GateMetric::kHeldoutLoss] = evaluation->loss;
    judge(run, record, evaluation->step, figures);
  } else if (const auto* done = std::get_if<wire::RankFinished>(&event.body);
             done != nullptr && done->rank == 0 && done->reason == wire::FinishReason::kCompleted) {
    add_verdicts(run, record, record.gates.finish(done->step));
  }
}

void RunMetrics::tell_verdicts() {
  for (const state::Event& event : std::exchange(verdicts_, {}))
    loop_.handle(event);
}

} // namespace nsa::control
