#include "worker/rules/non_finite.h"

#include <cmath>

namespace nsa::train {

NonFiniteRule::NonFiniteRule(const spec::TrainSection& train, int64_t streak)
    : action_(train.non_finite == spec::NonFinite::kStop       ? NonFiniteAction::kStop
              : train.non_finite == spec::NonFinite::kRollBack ? NonFiniteAction::kRollBack
                                                               : NonFiniteAction::kSkip),
      limit_(train.non_finite_limit), streak_(streak) {}

NonFiniteAction NonFiniteRule::observe(double loss, double gradient_norm) {
  if (std::isfinite(loss) && std::isfinite(gradient_norm)) {
    streak_ = 0;
    return NonFiniteAction::kNone;
  }
  what_ = std::isfinite(loss) ? "gradient" : "loss";
  ++streak_;
  ++total_;
  // A run that only skips updates does not train, so it stops above the limit.
  return streak_ > limit_ ? NonFiniteAction::kStop : action_;
}

NonFiniteAction NonFiniteRule::on_evaluation() const {
  return action_ == NonFiniteAction::kSkip ? NonFiniteAction::kReport : action_;
}

} // namespace nsa::train
