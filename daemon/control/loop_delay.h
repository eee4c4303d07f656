// How late the loop's ticks fire: the measure of everything that is done on its thread. Keeps those
// of about the last minute. A value; one thread.
#pragma once

#include "common/base/clock.h"
#include "common/base/json.h"

#include <array>
#include <cstdint>

namespace nsa::control {

class LoopDelay {
public:
  LoopDelay(Duration interval, MonotonicTime start) : interval_(interval), due_(start + interval) {}

  // A tick fires now; by how much it is late. Ticks are due on a grid that begins anew behind one
  // that came later than a whole interval, as the loop's timers do.
  Duration tick(MonotonicTime now);
  // {"ticks": 7, "p50": 0.0001, "p99": 0.002, "max": 0.003}, in seconds; of how many ticks.
  nlohmann::json summary() const;

private:
  static constexpr size_t kKept = 600;
  Duration interval_;
  MonotonicTime due_;
  std::array<float, kKept> late_{}; // seconds; the oldest is overwritten
  uint64_t ticks_ = 0;
};

} // namespace nsa::control
