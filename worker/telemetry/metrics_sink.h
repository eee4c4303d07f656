// Interface for rank 0's records of training, besides the messages to the shim: metrics.jsonl,
// TensorBoard. Training thread only. A sink never fails a run; it counts and logs what it could not
// write.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace nsa::train {

class MetricsSink {
public:
  virtual ~MetricsSink() = default;
  virtual void step(const wire::RankStep& step) = 0;
  virtual void evaluation(const wire::RankEvaluation& evaluation) = 0;
  virtual void non_finite(const wire::RankNonFinite& event) = 0;
  virtual void flush() {} // called at the end, and before a fault is injected
};

} // namespace nsa::train
