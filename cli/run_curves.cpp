#include "cli/run_curves.h"

#include "cli/run_records.h"
#include "common/wire/time.h"

#include <cmath>

namespace nsa::cli {

namespace {

constexpr int64_t kPoints = 2000; // points of a curve; more than a screen's columns

double seconds_of(const nlohmann::json& record) {
  const auto time = wire::parse_rfc3339(record.value("time", ""));
  return time ? static_cast<double>(*time) * 1e-9 : std::nan("");
}

} // namespace

Result<render::Curve> fetch_curve(client::Daemon& daemon, const wire::RunSummary& run, Axis x,
                                  render::PlotAxes& axes) {
  NSA_TRY_ASSIGN(const MetricName metric, parse_metric(axes.y_name));
  NSA_TRY_ASSIGN(const auto records,
                 fetch_records(daemon, run.id, {metric.kind, {metric.member}, kPoints}));
  render::Curve curve{run.id + "  " + run.name, {}};
  for (size_t i = 0; i < records.size(); ++i) {
    const double place = x == Axis::kTime
                             ? (seconds_of(records[i]) - seconds_of(records.front())) / 3600
                             : number_of(records[i], text_of(x));
    if (!std::isfinite(place)) continue;
    curve.points.emplace_back(place, number_of(records[i], metric.member));
    const bool restarted = i > 0 && records[i]["attempt"] != records[i - 1]["attempt"];
    if (restarted) axes.marks.push_back(place);
  }
  return curve;
}

} // namespace nsa::cli
