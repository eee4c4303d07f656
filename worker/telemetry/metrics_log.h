// MetricsLog writes metrics.jsonl in the run folder: one JSON object a line, keyed by attempt and
// step. If the rank is killed, at most the last line is cut; a full disk cuts none.
// docs/design/training.md describes the keys. A step that was repeated after a restart has two
// lines; the later attempt counts. An index of its curves is beside it (curve_index_writer.h).
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
