// Reads the numbers of one line of metrics.jsonl without building a tree, because a run of a
// million steps has a gigabyte of lines (common/base/json_scanner.h). Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::api {

// A worker's record has about 1 KiB, so longer lines are no records.
constexpr size_t kMaxMetricLine = size_t{64} << 10;

struct MetricLine {
  std::string kind, time;     // empty if the member is missing or no text
  bool has_kind = false;      // true if the member exists, of any type
  std::vector<double> values; // NaN if there is no such number
};

// `names` holds members such as "loss", and members of members such as "phase_seconds.forward". If
// a name occurs twice, the last one counts. Returns false if the line is no JSON object, or if a
// requested number does not fit a double. Callers reuse `line`.
bool read_metric_line(std::string_view text, const std::vector<std::string>& names,
                      MetricLine& line);

} // namespace nsa::api
