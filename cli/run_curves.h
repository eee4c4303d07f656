// Fetches a metric of a run as a curve.
#pragma once

#include "cli/client/daemon.h"
#include "cli/render/plot.h"
#include "common/base/choice.h"

#include <cstdint>

namespace nsa::cli {

enum class Axis : uint8_t { kStep, kTokens, kTime };
constexpr auto choice_names(Axis) {
  return names_of("step", "tokens", "time");
}

// Returns the metric axes.y_name over steps, tokens, or hours since its first record. Adds the
// run's restarts to axes.marks. Error: kInvalidArgument if there is no such metric.
Result<render::Curve> fetch_curve(client::Daemon& daemon, const wire::RunSummary& run, Axis x,
                                  render::PlotAxes& axes);

} // namespace nsa::cli
