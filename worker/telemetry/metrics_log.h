// metrics.jsonl in the run folder: one JSON object a line, keyed by attempt and step. A killed rank
// leaves at most its last line torn, a full disk none. docs/design/training.md describes the keys.
// A step that was done again after a restart is there twice; the later attempt counts. Beside it
// lies an index of its curves (curve_index_writer.h).
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "worker/telemetry/curve_index_writer.h"
#include "worker/telemetry/metrics_sink.h"
#include "worker/telemetry/record_file.h"

#include <filesystem>
#include <memory>

namespace nsa::train {

class MetricsLog : public MetricsSink {
public:
  static Result<std::unique_ptr<MetricsLog>> open(const std::filesystem::path& path,
                                                  AttemptNumber attempt);
  void step(const wire::RankStep& step) override;
  void evaluation(const wire::RankEvaluation& evaluation) override;
  void non_finite(const wire::RankNonFinite& event) override;

private:
  MetricsLog(telemetry::RecordFile file, AttemptNumber attempt, const std::filesystem::path& path,
             int64_t size)
      : file_(std::move(file)), attempt_(attempt), index_(path, size) {}
  void append(const char* kind, nlohmann::json body);
  telemetry::RecordFile file_;
  AttemptNumber attempt_;
  CurveIndexWriter index_;
};

} // namespace nsa::train
