// A metric of a run as a curve to draw.
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

// The metric that axes.y_name says, over steps, tokens or the hours since its first record.
// Adds the run's restarts to axes.marks. kInvalidArgument: no such metric.
Result<render::Curve> fetch_curve(client::Daemon& daemon, const wire::RunSummary& run, Axis x,
                                  render::PlotAxes& axes);

} // namespace nsa::cli
