// PhaseClock: the training thread's way of saying where it is. Writes the progress page and, from
// the same calls, adds up how long each phase of a step took.
#pragma once

#include "common/base/clock.h"
#include "common/progress/page.h"

#include <array>
#include <map>
#include <string>

namespace nsa::train {

class PhaseClock : public progress::Writer {
public:
  using Writer::Writer;

  void enter(progress::Phase phase, uint64_t micro_step = 0);
  progress::StepPosition position() const { return record().position(); }
  progress::Phase phase() const { return record().phase; }

  // Seconds by phase name since the last call; phases that took no time are left out.
  std::map<std::string, double> take_seconds();

private:
  void settle();
  MonotonicTime since_ = MonotonicTime::now();
  std::array<Duration, progress::kPhases.size()> spent_{};
};

} // namespace nsa::train
