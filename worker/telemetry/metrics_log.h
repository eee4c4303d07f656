// MetricsLog writes metrics.jsonl in the run folder: one JSON object a line, keyed by attempt and
// step. If the rank is killed, at most the last line is cut; a full disk cuts none.
// docs/design/training.md describes the keys. A step that was repeated after a restart has two
// lines; the later attempt counts. An index of its curves is beside it (curve_index_writer.h).
#pragma once

#include "common/base/json.h"
#include "worker/telemetry/curve_index_writer.h"
#include "worker/telemetry/metrics_sink.h"
#include "worker/telemetry/record_file.h"

#include <filesystem>
#include <optional>

namespace nsa::train {

class MetricsLog : public MetricsSink {
public:
  // If the file cannot be opened, records wait in memory (record_file.h).
  MetricsLog(const std::filesystem::path& path, AttemptNumber attempt);
  void step(const wire::RankStep& step) override;
  void evaluation(const wire::RankEvaluation& evaluation) override;
  void non_finite(const wire::RankNonFinite& event) override;
  void flush() override { file_.flush(); }

private:
  void append(const char* kind, nlohmann::json body);
  telemetry::RecordFile file_;
  AttemptNumber attempt_;
  std::optional<CurveIndexWriter> index_;
};

} // namespace nsa::train
