#include "daemon/state/phase_limits.h"

#include <vector>

namespace nsa::state {

using progress::LimitKind;
using progress::Phase;

namespace {
constexpr size_t kFewSteps = 20;
constexpr size_t kEnoughPhases = 3; // checkpoints and evaluations are rare
} // namespace

void DurationHistory::add(double seconds) {
  seconds_.push_back(seconds);
  if (seconds_.size() > kKept) {
    const double dropped = seconds_.front();
    seconds_.pop_front();
    // One value below the percentile has replaced another one there: the percentile is the same.
    if (seconds < usual_.p99 && dropped < usual_.p99) return;
  }
  std::vector<double> sorted(seconds_.begin(), seconds_.end());
  const size_t index = sorted.size() - 1 - sorted.size() / 100;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(index), sorted.end());
  usual_ = {sorted.size(), sorted[index]};
}

void PhaseLimits::add_phase(Phase phase, double seconds) {
  const LimitKind kind = progress::phase_info(phase).limit;
  if (kind == LimitKind::kSaving) checkpoints_.add(seconds);
  if (kind == LimitKind::kEvaluation) evaluations_.add(seconds);
}

double PhaseLimits::learn(const DurationHistory& history, size_t enough, double fixed,
                          double times) const {
  const auto [count, p99] = history.usual();
  if (count < enough) return fixed;
  const double factor = count < kFewSteps ? 2 * keys_.factor : keys_.factor;
  return std::clamp(times * factor * p99, keys_.floor_seconds,
                    std::max({keys_.floor_seconds, keys_.ceiling_seconds, fixed}));
}

double PhaseLimits::limit(Phase phase, bool first_step_done) const {
  const auto of_steps = [&](double times) {
    if (!first_step_done) return keys_.first_step_seconds;
    // Without history (an attempt adopted right after its first step) the larger of floor and
    // ceiling applies.
    return learn(steps_, 1, std::max(keys_.floor_seconds, keys_.ceiling_seconds), times);
  };
  switch (progress::phase_info(phase).limit) {
  case LimitKind::kStartUp:
    return keys_.start_up_seconds;
  case LimitKind::kStep:
    return of_steps(1);
  case LimitKind::kThreeSteps:
    return of_steps(3);
  case LimitKind::kCheckpoint:
    return keys_.checkpoint_seconds;
  case LimitKind::kSaving:
    return learn(checkpoints_, kEnoughPhases, keys_.checkpoint_seconds);
  case LimitKind::kEvaluation:
    return learn(evaluations_, kEnoughPhases, keys_.evaluation_seconds);
  }
  return keys_.ceiling_seconds;
}

double PhaseLimits::ceiling(Phase phase, bool first_step_done) const {
  return std::max(keys_.ceiling_seconds, limit(phase, first_step_done));
}

} // namespace nsa::state
