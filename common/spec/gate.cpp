#include "common/spec/gate.h"

#include "common/base/embedded_file.h"
#include "common/base/text.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace nsa::spec {

const std::vector<EmbeddedFile>& gate_preset_files(); // made by CMake of configs/gates

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLn3 = 1.0986122886681098; // entropy of three equal gates

constexpr std::array<GateMetricInfo, kChoiceNames<GateMetric>.size()> kMetrics = {{
    {GateMetric::kTokensPerSecond, "tokens/s", 0, kInfinity, "tokens of all ranks a second"},
    {GateMetric::kRateRatio, "", 0, kInfinity, "tokens a second over plan.tokens_per_second"},
    {GateMetric::kMfuRatio, "", 0, 1, "model FLOPs a second over the GPUs' dense BF16 rate"},
    {GateMetric::kResidentGb, "GB", 0, kInfinity, "resident memory of the largest rank's process"},
    {GateMetric::kReservedGb, "GB", 0, kInfinity,
     "device memory that the allocator of the largest rank holds"},
    {GateMetric::kLoss, "nats", 0, kInfinity, "training loss"},
    {GateMetric::kHeldoutLoss, "nats", 0, kInfinity, "held-out loss"},
    {GateMetric::kGradientNorm, "", 0, kInfinity, "gradient norm before clipping"},
    {GateMetric::kGateEntropy, "nats", 0, kLn3,
     "entropy of a layer's mean gates, in the layer with the lowest value"},
    {GateMetric::kLargestGate, "", 0, 1,
     "largest mean gate of a layer, in the layer with the highest value"},
    {GateMetric::kRankSkewRatio, "", 1, kInfinity,
     "step time of the slowest rank over the median rank's, without waits for others"},
    {GateMetric::kDataWaitSeconds, "seconds", 0, kInfinity,
     "time that rank 0 waited for data, a step"},
    {GateMetric::kCheckpointAgeSeconds, "seconds", 0, kInfinity,
     "time since the newest checkpoint, or since the attempt began"},
    {GateMetric::kTemperatureCelsius, "Celsius", -273, kInfinity,
     "temperature of the run's hottest GPU"},
    {GateMetric::kTotalHours, "hours", 0, kInfinity,
     "expected time from the first start to the end, at the present rate"},
    {GateMetric::kTotalHoursRatio, "", 0, kInfinity,
     "total_hours over plan.hours; without it, over the time at plan.tokens_per_second"},
    {GateMetric::kCost, "", 0, kInfinity,
     "expected cost of the whole run: ranks x hours x cost.per_gpu_hour"},
}};

constexpr std::array<GateOverInfo, kChoiceNames<GateOver>.size()> kOvers = {{
    {GateOver::kMean, "the mean over the window"},
    {GateOver::kMinimum, "the lowest value; it is judged as soon as it is below at_least"},
    {GateOver::kMaximum, "the highest value; it is judged as soon as it is above at_most"},
    {GateOver::kLast, "the newest value"},
    {GateOver::kGrowth, "the mean of the window's last tenth over that of its first tenth, less 1"},
    {GateOver::kShareAbove, "the share of records whose value is above `threshold`"},
}};

template <class Table> constexpr bool in_order(const Table& table, auto member) {
  for (size_t i = 0; i < table.size(); ++i)
    if (static_cast<size_t>(table[i].*member) != i) return false;
  return true;
}
static_assert(in_order(kMetrics, &GateMetricInfo::metric));
static_assert(in_order(kOvers, &GateOverInfo::over));

} // namespace

FieldTable gate_fields(GateRule& g) {
  constexpr double kMany = 1e15;
  return {
      {.key = "name",
       .at = &g.name,
       .maximum = 64,
       .meaning = "name shown in events and tables; default: the name of the metric"},
      {.key = "metric",
       .at = choice(g.metric),
       .required = true,
       .meaning = "metric to watch, from the table below"},
      {.key = "over",
       .at = choice(g.over),
       .meaning = "how the records of a window become one value, from the table below"},
      {.key = "threshold",
       .at = &g.threshold,
       .meaning = "for share_above: records above this value count"},
      {.key = "at_least", .at = &g.at_least, .meaning = "lowest value that passes"},
      {.key = "at_most", .at = &g.at_most, .meaning = "highest value that passes"},
      {.key = "window_steps",
       .at = &g.window_steps,
       .minimum = 1,
       .maximum = kMany,
       .unit = "steps",
       .meaning = "length of a window; one window follows the other, and each is judged"},
      {.key = "first_step",
       .at = &g.first_step,
       .minimum = 1,
       .maximum = kMany,
       .unit = "steps",
       .meaning = "first step of the first window"},
      {.key = "action",
       .at = choice(g.action),
       .meaning = "warn: an event and an alarm; pause: a checkpoint, then the run waits for "
                  "`nsactl resume`; stop: a checkpoint, then the run is failed, class gate"},
  };
}

bool is_given(const Field& field) {
  const auto* number = std::get_if<double*>(&field.at);
  return number == nullptr || !std::isnan(**number);
}

const GateMetricInfo& gate_metric(GateMetric metric) {
  return kMetrics.at(static_cast<size_t>(metric));
}

std::span<const GateOverInfo> gate_overs() {
  return kOvers;
}

std::string bound_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string bound_text(const GateRule& rule) {
  if (std::isnan(rule.at_least)) return "at most " + bound_number(rule.at_most);
  if (std::isnan(rule.at_most)) return "at least " + bound_number(rule.at_least);
  return bound_number(rule.at_least) + " to " + bound_number(rule.at_most);
}

std::vector<std::string_view> gate_preset_names() {
  std::vector<std::string_view> names;
  for (const EmbeddedFile& file : gate_preset_files())
    names.push_back(file.name.substr(0, file.name.rfind('.')));
  return names;
}

} // namespace nsa::spec
