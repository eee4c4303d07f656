#include "common/wire/run_row.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace nsa::wire {

namespace {

constexpr size_t kTrend = 8;

template <class Summary, class Take> void each_column(Summary& s, Take take) {
  take("id", s.id);
  take("name", s.name);
  take("state", s.state);
  take("reason", s.reason);
  take("attempt", s.attempt);
  take("ranks", s.ranks);
  take("restarts", s.restarts);
  take("resumes", s.resumes);
  take("hangs", s.hangs);
  take("step", s.step);
  take("steps", s.steps);
  take("tokens", s.tokens);
  take("has_loss", s.has_loss);
  take("loss", s.loss);
  take("has_heldout_loss", s.has_heldout_loss);
  take("heldout_loss", s.heldout_loss);
  take("tokens_per_second", s.tokens_per_second);
  take("eta_seconds", s.eta_seconds);
  take("loss_trend", s.loss_trend);
  take("submitted_at", s.submitted_at);
  take("started_at", s.started_at);
  take("ended_at", s.ended_at);
  take("waits_until", s.waits_until);
  take("inject", s.inject);
  take("user", s.user);
  take("note", s.note);
  take("tags", s.tags);
  // Behind what rows of older programs have.
  take("data_wait_ratio", s.data_wait_ratio);
  take("exposed_communication_ratio", s.exposed_communication_ratio);
}

double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

} // namespace

const std::vector<std::string>& run_columns() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    RunSummary none;
    each_column(none, [&](const char* name, const auto&) { list.emplace_back(name); });
    return list;
  }();
  return names;
}

nlohmann::json to_row(const RunSummary& run) {
  RunSummary short_run = run;
  const std::vector<double>& points = run.loss_trend;
  const size_t width = std::min(kTrend, points.size());
  short_run.loss_trend.assign(width, 0);
  for (size_t i = 0; i < width; ++i) {
    const size_t from = i * points.size() / width, to = (i + 1) * points.size() / width;
    for (size_t k = from; k < to; ++k)
      short_run.loss_trend[i] += points[k] / static_cast<double>(to - from);
    short_run.loss_trend[i] = rounded(short_run.loss_trend[i]);
  }
  auto row = nlohmann::json::array();
  each_column(short_run, [&](const char*, const auto& value) { row.push_back(value); });
  return row;
}

Result<RunSummary> from_row(const nlohmann::json& row) {
  RunSummary run;
  size_t column = 0;
  try {
    each_column(run, [&](const char*, auto& value) {
      const size_t i = column++;
      if (i < row.size() && !row.at(i).is_null()) row.at(i).get_to(value);
    });
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, "column " + run_columns()[column - 1] +
                                         " of a run's row has the wrong shape: " + e.what());
  }
  return run;
}

} // namespace nsa::wire
