// PhaseClock records where the training thread is. The same calls write the progress page and add
// up the time of each phase of a step.
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

  // Returns the seconds by phase name since the last call, without phases that took no time.
  std::map<std::string, double> take_seconds();

private:
  void settle();
  MonotonicTime since_ = MonotonicTime::now();
  std::array<Duration, progress::kPhases.size()> spent_{};
};

} // namespace nsa::train
