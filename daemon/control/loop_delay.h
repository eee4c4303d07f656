// How late the loop's ticks fire, which measures all work on the loop's thread. It keeps the ticks
// of about the last minute. A value for one thread.
#pragma once

#include "common/base/clock.h"
#include "common/base/json.h"

#include <array>
#include <cstdint>

namespace nsa::control {

class LoopDelay {
public:
  LoopDelay(Duration interval, MonotonicTime start) : interval_(interval), due_(start + interval) {}

  // Call it when a tick fires. Returns how late the tick is. Ticks are due at fixed intervals.
  // After a tick that is late by more than an interval, the next one is due an interval from now,
  // as with the loop's timers.
  Duration tick(MonotonicTime now);
  // {"ticks": 7, "p50": 0.0001, "p99": 0.002, "max": 0.003}: the number of ticks, and delays in
  // seconds.
  nlohmann::json summary() const;

private:
  static constexpr size_t kKept = 600;
  Duration interval_;
  MonotonicTime due_;
  std::array<float, kKept> late_{}; // seconds; the newest overwrites the oldest
  uint64_t ticks_ = 0;
};

} // namespace nsa::control
