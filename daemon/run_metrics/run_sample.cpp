// A run as /metrics shows it.
#include "common/estimate/device_peak.h"
#include "common/estimate/estimate.h"
#include "daemon/run_metrics/run_record.h"

namespace nsa::control {

namespace {

// Kernels by part, without the reasons in brackets, whose number is not bounded.
std::map<std::string, std::string> kernels_of(const nlohmann::json& provenance) {
  std::map<std::string, std::string> kernels;
  if (!provenance.is_object()) return kernels;
  const auto reported = provenance.find("kernels");
  if (reported == provenance.end() || !reported->is_object()) return kernels;
  for (const auto& [part, kernel] : reported->items())
    if (kernel.is_string()) {
      const std::string text = kernel.get<std::string>();
      kernels[part] = text.substr(0, text.find(" ("));
    }
  return kernels;
}

} // namespace

double mfu_of_token_rate(const spec::RunSpec& spec, const std::vector<std::string>& devices) {
  double peak = 0;
  for (const std::string& device : devices) {
    const double rate = estimate::peak_bf16_flops(device);
    if (rate == 0) return 0;
    peak += rate;
  }
  if (peak == 0) return 0;
  return estimate::arithmetic(spec).total() / static_cast<double>(spec.tokens_per_step()) / peak;
}

std::optional<double> mfu_ratio(const RunRecord& record, double tokens_per_second) {
  std::vector<std::string> devices;
  for (const auto& [rank, info] : record.ranks)
    devices.push_back(info.device);
  const double of_one = mfu_of_token_rate(record.spec, devices);
  if (of_one <= 0 || tokens_per_second <= 0) return std::nullopt;
  return of_one * tokens_per_second;
}

metrics::RunSample metrics_of(const state::Run& run, const RunRecord& record,
                              const LiveAttempt* live) {
  metrics::RunSample sample = record.counters;
  if (const Wait& wait = record.wait; wait.use)
    sample.phase_seconds[text_of(*wait.use)] +=
        std::max(0.0, to_seconds(WallTime::now() - wait.since));
  const wire::RunSummary summary = summary_of(run, record);
  sample.id = run.id;
  sample.name = record.row.name;
  sample.user = record.row.user;
  sample.model = "nsa";
  sample.rungs = run.standing.active.size();
  sample.attention = spec::text_of(record.spec.model.attention);
  sample.spec_digest = record.row.spec_digest;
  sample.state = summary.state;
  sample.kernels = kernels_of(record.provenance);
  sample.submitted = run.submitted_at;
  sample.started = run.started_at;
  sample.planned_steps = summary.steps;
  sample.attempt = run.attempt.number;
  sample.step = summary.step;
  if (summary.eta_seconds > 0) sample.eta = WallTime::now() + from_seconds(summary.eta_seconds);
  if (summary.has_heldout_loss) sample.heldout_loss = summary.heldout_loss;
  if (summary.tokens_per_second > 0) sample.tokens_per_second = summary.tokens_per_second;
  sample.mfu_ratio = mfu_ratio(record, summary.tokens_per_second);
  for (size_t i = 0; i < record.gates.rules().size(); ++i) {
    const spec::GateRule& rule = record.gates.rules()[i];
    const auto& verdict = record.gates.newest()[i];
    sample.failing_gates[{spec::text_of(rule.metric), spec::text_of(rule.action)}] +=
        verdict && !verdict->passed ? 1 : 0;
  }
  sample.checkpoint_interval_steps = static_cast<double>(record.spec.checkpoint.interval_steps);
  double fastest = 0;
  for (const auto& [rank, info] : record.ranks)
    if (info.own_step_seconds > 0 && (fastest == 0 || info.own_step_seconds < fastest))
      fastest = info.own_step_seconds;
  for (size_t r = 0; r < run.attempt.ranks.size(); ++r) {
    const wire::RankView view = rank_view(run, record, static_cast<Rank>(r), live);
    metrics::RankSample& rank = sample.ranks.emplace_back();
    rank.rank = view.rank;
    rank.gpu = run.device == spec::Device::kCuda ? std::to_string(r) : "cpu";
    if (run.device == spec::Device::kCuda && r < run.attempt.slots.size())
      rank.gpu_uuid = run.attempt.slots[r];
    rank.up = run.attempt.ranks[r].started && !run.attempt.ranks[r].exited;
    rank.step = view.step;
    if (live != nullptr && r < live->samples().size())
      rank.last_progress = live->samples()[r].moved_at;
    if (const auto info = record.ranks.find(view.rank); info != record.ranks.end()) {
      rank.step_seconds = info->second.step_seconds;
      rank.phase_seconds = info->second.phase_seconds;
      rank.figures = info->second.figures;
      rank.own_step_seconds = info->second.own_step_seconds;
      if (rank.own_step_seconds > 0) rank.perf_score_ratio = fastest / rank.own_step_seconds;
    }
  }
  return sample;
}

} // namespace nsa::control
