#include "daemon/metrics/snapshot.h"

namespace nsa::metrics {

namespace {

size_t row_of(std::string_view name) {
  size_t i = 0;
  while (wire::kStepMetrics.at(i).name != name)
    ++i;
  return i;
}

} // namespace

StepFigures::StepFigures(Of of) {
  for (size_t i = 0; i < values_.size(); ++i) {
    const wire::Metric& metric = wire::kStepMetrics[i].metric;
    has_[i] = of == Of::kRank ? !metric.prometheus_of_rank.empty()
                              : !metric.prometheus.empty() || !metric.status.empty();
    if (has_[i] && metric.over == wire::OverRecords::kSum) values_[i] = 0;
  }
}

void StepFigures::add(const wire::RankStep& step) {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!has_[i]) continue;
    const auto& row = wire::kStepMetrics[i];
    const bool sum = row.metric.over == wire::OverRecords::kSum;
    values_[i] = row.of(step) + (sum ? *values_[i] : 0);
  }
}

std::optional<double>& StepFigures::operator[](std::string_view name) {
  return values_[row_of(name)];
}

double StepFigures::value_or_0(std::string_view name) const {
  return values_[row_of(name)].value_or(0);
}

std::map<std::string, double> StepFigures::named() const {
  std::map<std::string, double> named;
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i]) named[wire::kStepMetrics[i].name] = *values_[i];
  return named;
}

// The bounds suit 125M parameters on 1 to 8 GPUs, and also a laptop.
Histogram step_histogram() {
  return Histogram(
      {.01, .02, .03, .05, .075, .1, .15, .2, .25, .3, .4, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 60});
}
Histogram recovery_histogram() {
  return Histogram({1, 2, 5, 10, 20, 30, 60, 120, 300, 600});
}
Histogram checkpoint_histogram() {
  return Histogram({.05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 120});
}
Histogram request_histogram() {
  return Histogram({.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5});
}

} // namespace nsa::metrics
