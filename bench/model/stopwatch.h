// Moments in a device's work: events of the current stream on a GPU, the clock on a CPU.
#pragma once

#include "common/base/clock.h"

#include <c10/core/Event.h>

#include <vector>

namespace nsa::bench {

class Stopwatch {
public:
  explicit Stopwatch(at::Device device) : device_(device) {}
  void mark(); // behind what is enqueued so far
  // Milliseconds from mark `from` to mark `to`; the device has passed both.
  double milliseconds(size_t from, size_t to) const;

private:
  at::Device device_;
  std::vector<c10::Event> events_;
  std::vector<MonotonicTime> times_;
};

struct Spread {
  double median = 0, low = 0, high = 0; // tenth and ninetieth percentile
};
Spread spread_of(std::vector<double> values);

} // namespace nsa::bench
