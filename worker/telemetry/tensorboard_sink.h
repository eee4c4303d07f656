// The metrics sink for metrics.tensorboard = true (worker/telemetry/tensorboard.h).
#pragma once

#include "worker/telemetry/metrics_sink.h"
#include "worker/telemetry/tensorboard.h"

namespace nsa::train {

class TensorBoardSink : public MetricsSink {
public:
  explicit TensorBoardSink(telemetry::TensorBoardWriter writer) : writer_(std::move(writer)) {}
  void step(const wire::RankStep& step) override { writer_.step(step); }
  void evaluation(const wire::RankEvaluation& evaluation) override {
    writer_.evaluation(evaluation);
  }
  void non_finite(const wire::RankNonFinite& event) override { writer_.non_finite(event); }
  void flush() override { writer_.flush(); }

private:
  telemetry::TensorBoardWriter writer_;
};

} // namespace nsa::train
