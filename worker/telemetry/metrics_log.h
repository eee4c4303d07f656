// metrics.jsonl in the run folder: one JSON object a line, keyed by attempt and step, appended with
// one write(2) a line, so that a killed rank leaves at most its last line torn. docs/design/
// training.md describes the keys. A step that was done again after a restart is there twice; the
// later attempt counts.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "worker/telemetry/metrics_sink.h"

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
  MetricsLog(UniqueFd fd, AttemptNumber attempt) : fd_(std::move(fd)), attempt_(attempt) {}
  void append(const char* kind, nlohmann::json body);
  UniqueFd fd_;
  AttemptNumber attempt_;
  uint64_t failed_ = 0;
};

} // namespace nsa::train
