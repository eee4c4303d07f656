#include "daemon/state/phase_limits.h"

#include <algorithm>

namespace nsa::state {

using progress::LimitKind;
using progress::Phase;

namespace {
constexpr size_t kFewSteps = 20;
constexpr size_t kEnoughPhases = 3; // checkpoints and evaluations are rare
} // namespace

void DurationHistory::add(double seconds) {
  if (seconds_.size() < kKept) {
    seconds_.push_back(seconds);
  } else {
    seconds_[next_] = seconds;
    next_ = (next_ + 1) % kKept;
  }
  std::vector<double> sorted = seconds_;
  const size_t index = sorted.size() - 1 - sorted.size() / 100;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(index), sorted.end());
  p99_ = sorted[index];
}

void DurationHistory::recall(size_t count, double p99) {
  for (size_t i = 0; i < std::min(count, kKept); ++i)
    add(p99);
}

PhaseLimits::PhaseLimits(const HangPolicy& policy, const Learned& learned) : policy_(policy) {
  steps_.recall(learned.steps.count, learned.steps.p99);
  checkpoints_.recall(learned.checkpoints.count, learned.checkpoints.p99);
  evaluations_.recall(learned.evaluations.count, learned.evaluations.p99);
}

Learned PhaseLimits::learned() const {
  const auto usual = [](const DurationHistory& h) { return Learned::Usual{h.count(), h.p99()}; };
  return {usual(steps_), usual(checkpoints_), usual(evaluations_)};
}

void PhaseLimits::add_phase(Phase phase, double seconds) {
  const LimitKind kind = progress::phase_info(phase).limit;
  if (kind == LimitKind::kSaving) checkpoints_.add(seconds);
  if (kind == LimitKind::kEvaluation) evaluations_.add(seconds);
}

double PhaseLimits::learned(const DurationHistory& history, double cap, double times) const {
  const double factor = history.count() < kFewSteps ? 2 * policy_.factor : policy_.factor;
  return std::clamp(times * factor * history.p99(), policy_.floor, std::max(policy_.floor, cap));
}

double PhaseLimits::of_rare(const DurationHistory& history, double fixed) const {
  return history.count() < kEnoughPhases ? fixed
                                         : learned(history, std::max(policy_.ceiling, fixed));
}

double PhaseLimits::of_steps(double times, bool first_step_done) const {
  if (!first_step_done) return policy_.first_step;
  // Of an attempt that was adopted right after its first step nothing is known.
  return steps_.count() == 0 ? std::max(policy_.floor, policy_.ceiling)
                             : learned(steps_, policy_.ceiling, times);
}

double PhaseLimits::limit(Phase phase, bool first_step_done) const {
  switch (progress::phase_info(phase).limit) {
  case LimitKind::kStartUp:
    return policy_.start_up;
  case LimitKind::kStep:
    return of_steps(1, first_step_done);
  case LimitKind::kThreeSteps:
    return of_steps(3, first_step_done);
  case LimitKind::kCheckpoint:
    return policy_.checkpoint;
  case LimitKind::kSaving:
    return of_rare(checkpoints_, policy_.checkpoint);
  case LimitKind::kEvaluation:
    return of_rare(evaluations_, policy_.evaluation);
  }
  return policy_.ceiling;
}

double PhaseLimits::ceiling(Phase phase, bool first_step_done) const {
  return std::max(policy_.ceiling, limit(phase, first_step_done));
}

} // namespace nsa::state
