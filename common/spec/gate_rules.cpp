// Checks for gates that make no sense in a run file.
#include "common/base/text.h"
#include "common/spec/gate.h"

#include <cmath>
#include <set>

namespace nsa::spec {

namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// Checks one gate of a run.
class GateCheck {
public:
  // `prefix` is that of its keys; for a preset's gate it is the key that names the preset.
  GateCheck(const RunSpec& spec, const GateRule& rule, std::string prefix, std::string preset,
            Reading& reading)
      : s_(spec), g_(rule), prefix_(std::move(prefix)), preset_(std::move(preset)),
        reading_(reading) {}

  void all() {
    for (const std::string& bad : reading_.bad_keys)
      if (bad.starts_with(prefix_)) return; // already reported
    bounds();
    windows();
    device();
    configuration();
  }

private:
  void refuse(const std::string& key, const std::string& what, const std::string& next = {}) {
    if (preset_.empty())
      return add_rule_problem(reading_, {prefix_ + key, prefix_ + "metric"}, {what, next});
    add_rule_problem(reading_, {prefix_},
                     {"gate \"" + g_.shown_name() + "\" of preset \"" + preset_ + "\": " + what,
                      next.empty() ? "leave the preset out" : next});
  }

  void bounds() {
    const bool low = !std::isnan(g_.at_least), high = !std::isnan(g_.at_most);
    if (!low && !high) refuse("metric", "has no bound", "give at_least, at_most or both");
    if (low && high && g_.at_least > g_.at_most)
      refuse("at_least", "must not exceed at_most (" + bound_number(g_.at_most) + "), but is " +
                             bound_number(g_.at_least));
    if (g_.over == GateOver::kShareAbove && std::isnan(g_.threshold))
      refuse("over", "\"share_above\" needs a threshold", "write threshold = 2.0, say");
    if (g_.over != GateOver::kShareAbove && !std::isnan(g_.threshold))
      refuse("threshold", "has no effect on over = \"" + text_of(g_.over) + "\"",
             "use over = \"share_above\"");
    const GateMetricInfo& info = gate_metric(g_.metric);
    double lowest = info.lowest, highest = info.highest;
    if (g_.over == GateOver::kShareAbove) lowest = 0, highest = 1;
    if (g_.over == GateOver::kGrowth) lowest = -1, highest = kUnbounded;
    const std::string of = g_.over == GateOver::kMean
                               ? text_of(g_.metric)
                               : text_of(g_.over) + " of " + text_of(g_.metric);
    if (low && g_.at_least > highest)
      refuse("at_least", "can never hold: " + of + " is at most " + bound_number(highest));
    if (high && g_.at_most < lowest)
      refuse("at_most", "can never hold: " + of + " is at least " + bound_number(lowest));
  }

  void windows() {
    const int64_t log = s_.train.log_interval_steps, steps = s_.train.steps;
    for (const char* key : {"train.steps", "train.log_interval_steps", "eval.interval_steps"})
      if (reading_.bad_keys.count(key)) return;
    const int64_t end = g_.first_step + g_.window_steps - 1;
    if (steps > 0 && end > steps)
      refuse("window_steps",
             "is never over: the first window ends with step " + std::to_string(end) +
                 ", the run with step " + std::to_string(steps),
             "choose a smaller window_steps or first_step");
    const bool evaluations = g_.metric == GateMetric::kHeldoutLoss;
    const int64_t interval = evaluations ? s_.eval.interval_steps : log;
    const int64_t needed = g_.over == GateOver::kGrowth ? 2 * interval : interval;
    if (evaluations && interval == 0)
      refuse("metric", "\"heldout_loss\" is not there before the end: eval.interval_steps is 0",
             "set eval.interval_steps");
    else if (g_.window_steps < needed)
      refuse("window_steps",
             "must be at least " + std::to_string(needed) + ", since " +
                 (evaluations ? "eval.interval_steps" : "train.log_interval_steps") + " is " +
                 std::to_string(interval) + ", not " + std::to_string(g_.window_steps));
  }

  void device() {
    const bool of_gpu = g_.metric == GateMetric::kReservedGb ||
                        g_.metric == GateMetric::kMfuRatio ||
                        g_.metric == GateMetric::kTemperatureCelsius;
    if (!of_gpu || s_.parallel.device != Device::kCpu) return;
    refuse("metric", "\"" + text_of(g_.metric) + "\" needs GPUs, but parallel.device is \"cpu\"",
           g_.metric == GateMetric::kReservedGb ? "use \"resident_gb\"" : "");
  }

  void configuration() {
    const auto needs = [&](bool there, const std::string& what, const std::string& next = {}) {
      if (!there) refuse("metric", "\"" + text_of(g_.metric) + "\" " + what, next);
    };
    switch (g_.metric) {
    case GateMetric::kGateEntropy:
    case GateMetric::kLargestGate:
      needs(s_.model.attention == Attention::kNsa, "is of NSA, but model.attention is \"dense\"");
      needs(s_.model.attention != Attention::kNsa || s_.nsa.gate == Gate::kGroupSoftmax,
            "is of gates that add up to 1, but nsa.gate is \"head_sigmoid\"");
      needs(s_.model.attention != Attention::kNsa || s_.nsa.branches.size() > 1,
            "is of several branches, but nsa.branches names one");
      return;
    case GateMetric::kRankSkewRatio:
      return needs(s_.parallel.ranks > 1, "needs at least 2 ranks", "leave this gate out");
    case GateMetric::kCheckpointAgeSeconds:
      return needs(s_.checkpoint.interval_steps > 0,
                   "needs checkpoints, but checkpoint.interval_steps is 0",
                   "set checkpoint.interval_steps");
    case GateMetric::kRateRatio:
      return needs(s_.plan.tokens_per_second > 0, "needs plan.tokens_per_second",
                   "set it to the rate of an equal run");
    case GateMetric::kTotalHoursRatio:
      return needs(s_.plan.hours > 0 || s_.plan.tokens_per_second > 0,
                   "needs plan.hours or plan.tokens_per_second", "say how long the run may take");
    case GateMetric::kCost:
      return needs(s_.cost.per_gpu_hour > 0, "needs cost.per_gpu_hour",
                   "say what one GPU costs for an hour");
    default:
      return;
    }
  }

  const RunSpec& s_;
  const GateRule& g_;
  const std::string prefix_, preset_;
  Reading& reading_;
};

} // namespace

void check_gates(const RunSpec& spec, Reading& reading) {
  std::set<std::string> names;
  for (size_t i = 0; i < spec.gates.size(); ++i) {
    const std::string prefix = "gate[" + std::to_string(i) + "].";
    GateCheck(spec, spec.gates[i], prefix, "", reading).all();
    if (!spec.gates[i].name.empty() && !names.insert(spec.gates[i].name).second)
      add_rule_problem(reading, {prefix + "name"},
                       {"\"" + spec.gates[i].name + "\" is the name of another gate",
                        "give each gate a name of its own"});
  }
  if (reading.bad_keys.count("run.gates")) return;
  for (const std::string& name : spec.run.gates)
    for (const GatePreset& preset : gate_presets())
      if (preset.name == name)
        for (const GateRule& gate : preset.gates)
          GateCheck(spec, gate, "run.gates", name, reading).all();
}

} // namespace nsa::spec
