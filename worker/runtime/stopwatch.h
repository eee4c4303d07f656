// Marks in a device's work: events of the current stream on a GPU, clock readings on a CPU. Marking
// never waits. Use it from one thread.
#pragma once

#include "common/base/clock.h"

#include <c10/core/Event.h>

#include <vector>

namespace nsa::runtime {

class Stopwatch {
public:
  explicit Stopwatch(at::Device device) : device_(device) {}
  void mark(); // comes after the work enqueued so far
  size_t marks() const { return device_.is_cpu() ? times_.size() : events_.size(); }
  // Milliseconds from mark `from` to mark `to`. Throws if the device has not passed both.
  double milliseconds(size_t from, size_t to) const;

private:
  at::Device device_;
  std::vector<c10::Event> events_;
  std::vector<MonotonicTime> times_;
};

} // namespace nsa::runtime
