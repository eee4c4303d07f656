#include "worker/link/phase_clock.h"

namespace nsa::train {

void PhaseClock::settle() {
  const MonotonicTime now = MonotonicTime::now();
  spent_[static_cast<size_t>(phase())] += now - since_;
  since_ = now;
}

void PhaseClock::enter(progress::Phase phase, uint64_t micro_step) {
  settle();
  Writer::enter(phase, micro_step);
}

std::map<std::string, double> PhaseClock::take_seconds() {
  settle();
  std::map<std::string, double> seconds;
  for (size_t i = 0; i < spent_.size(); ++i)
    if (spent_[i].count() > 0)
      seconds[std::string(phase_name(static_cast<progress::Phase>(i)))] = to_seconds(spent_[i]);
  spent_.fill(Duration(0));
  return seconds;
}

} // namespace nsa::train
