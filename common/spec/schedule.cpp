#include "common/spec/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nsa::spec {

double learning_rate(const TrainSection& train, uint64_t step) {
  const auto at = static_cast<double>(step);
  const auto warmup = static_cast<double>(train.warmup_steps);
  if (at < warmup) return train.learning_rate * at / warmup;
  if (train.schedule == Schedule::kConstant) return train.learning_rate;
  const double span = static_cast<double>(train.steps) - warmup;
  const double done = span > 0 ? std::clamp((at - warmup) / span, 0.0, 1.0) : 1.0;
  // Fraction of the decay that remains: 1 after the warm-up, 0 at the last step.
  const double left = train.schedule == Schedule::kLinear
                          ? 1.0 - done
                          : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  const double ratio = train.final_learning_rate_ratio;
  return train.learning_rate * (ratio + (1.0 - ratio) * left);
}

} // namespace nsa::spec
