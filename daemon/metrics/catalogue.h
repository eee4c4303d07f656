// Every metric of /metrics in one table: name, type, labels, meaning, how to read it from a
// snapshot, and under which key the ledger keeps it. The exposition, what outlives nsad,
// docs/metrics.md and the tests of dashboards walk this table. Rows of step metrics are made of
// wire::kStepMetrics.
//
// Labels are bounded: run_id, rank, and closed lists of words; never a step, path, message or pid.
#pragma once

#include "daemon/metrics/snapshot.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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

enum class Type { kGauge, kCounter, kHistogram };

using RunMember =
    std::variant<std::monostate, uint64_t RunSample::*, double RunSample::*,
                 std::optional<WallTime> RunSample::*, std::map<std::string, uint64_t> RunSample::*,
                 std::map<std::string, double> RunSample::*, Histogram RunSample::*,
                 std::map<std::string, Histogram> RunSample::*>;
// What the ledger keeps of a run, so that a restart of nsad does not reset it. A key of a ledger
// never changes.
struct Kept {
  const char* key = nullptr; // nothing is kept
  RunMember member;
};

struct Row {
  std::string_view name;
  Type type;
  std::string_view labels; // "run_id, rank"; empty: none
  std::string_view meaning;
  std::function<void(const Snapshot&, Samples&)> read;
  Kept kept = {};
  bool on_dashboard = true; // false: for queries only
};

inline constexpr bool kQueryOnly = false; // Row::on_dashboard

const std::vector<Row>& catalogue();

// docs/metrics.md.
std::string catalogue_markdown();
std::string step_metrics_markdown();

} // namespace nsa::metrics
