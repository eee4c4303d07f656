// PhaseClock: the training thread's way of saying where it is. Writes the progress page and, from
// the same calls, adds up how long each phase of a step took.
#pragma once

#include "common/base/clock.h"
#include "common/progress/page.h"

#include <array>
#include <map>
#include <string>

namespace nsa::train {

class PhaseClock {
public:
  explicit PhaseClock(progress::Page page) : writer_(std::move(page)) {}

  void enter(progress::Phase phase, uint64_t micro_step = 0);
  void begin_step(uint64_t step, uint64_t tokens) { writer_.begin_step(step, tokens); }
  void set_batch_index(uint64_t index) { writer_.set_batch_index(index); }
  progress::Writer& writer() { return writer_; }
  progress::StepPosition position() const { return writer_.record().position(); }
  progress::Phase phase() const { return writer_.record().phase; }

  // Seconds by phase name since the last call; phases that took no time are left out.
  std::map<std::string, double> take_seconds();
  double seconds_in(progress::Phase phase) const {
    return to_seconds(spent_[static_cast<size_t>(phase)]);
  }

private:
  void settle();
  progress::Writer writer_;
  MonotonicTime since_ = MonotonicTime::now();
  std::array<Duration, progress::kPhases.size()> spent_{};
};

} // namespace nsa::train
