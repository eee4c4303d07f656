#include "worker/link/phase_clock.h"

namespace nsa::train {

void PhaseClock::settle() {
  const MonotonicTime now = MonotonicTime::now();
  spent_[static_cast<size_t>(counted_as_)] += now - since_;
  since_ = now;
}

void PhaseClock::enter(progress::Phase phase, uint64_t micro_step) {
  settle();
  counted_as_ = phase;
  writer_.enter(phase, micro_step);
}

void PhaseClock::enter_collect(progress::Phase what_for) {
  settle();
  counted_as_ = what_for;
  writer_.enter(progress::Phase::kCollect);
}

std::map<std::string, double> PhaseClock::take_seconds() {
  settle();
  std::map<std::string, double> seconds;
  for (size_t i = 0; i < spent_.size(); ++i)
    if (spent_[i].count() > 0)
      seconds[std::string(progress::kPhaseNames[i])] = to_seconds(spent_[i]);
  spent_.fill(Duration(0));
  return seconds;
}

} // namespace nsa::train
