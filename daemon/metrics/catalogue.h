// Every metric of /metrics in one table: name, type, labels, meaning, and how to read it from a
// snapshot. The exposition, docs/metrics.md and the tests of dashboards read this table. Most rows
// come from the figures of samples (snapshot.h) and from wire::kStepMetrics.
//
// Label values are bounded: run_id, rank, and closed lists of words. A label never holds a step,
// path, message or pid.
#pragma once

#include "daemon/metrics/snapshot.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nsa::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

// Collects the samples of one metric.
class Samples {
public:
  virtual ~Samples() = default;
  virtual void value(Labels labels, double value) = 0;
  virtual void histogram(Labels labels, const Histogram& histogram) = 0;
};

struct Row {
  std::string_view name;
  Type type;
  std::string labels; // "run_id, rank"; empty if there are none
  std::string_view meaning;
  std::function<void(const Snapshot&, Samples&)> read;
  bool on_dashboard = true; // false if only queries use it
};

const std::vector<Row>& catalogue();

// These return parts of docs/metrics.md.
std::string catalogue_markdown();
std::string step_metrics_markdown();
std::string layer_metrics_markdown();

} // namespace nsa::metrics
