// The numbers of one line of metrics.jsonl, found without a tree: a run of a million steps has a
// gigabyte of them (common/base/json_scanner.h). Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::api {

// Longer lines are no records of a worker: a record has about 1 KiB.
constexpr size_t kMaxMetricLine = size_t{64} << 10;

struct MetricLine {
  std::string kind, time;     // "" where it is missing or no text
  bool has_kind = false;      // of any type
  std::vector<double> values; // NaN where there is no such number
};

// `names`: "loss", or "phase_seconds.forward" for a member of a member. Of a name that is there
// twice the last counts. False: the line is no JSON object, or a number that is asked for does not
// fit a double. `line` is reused from call to call.
bool read_metric_line(std::string_view text, const std::vector<std::string>& names,
                      MetricLine& line);

} // namespace nsa::api
