#include "worker/runtime/stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace nsa::runtime {

void Stopwatch::mark() {
  if (device_.is_cpu()) {
    times_.push_back(MonotonicTime::now());
    return;
  }
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT); // the default flag records no
                                                                     // time
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  events_.push_back(std::move(event));
}

double Stopwatch::milliseconds(size_t from, size_t to) const {
  if (device_.is_cpu()) return to_seconds(times_.at(to) - times_.at(from)) * 1e3;
  return events_.at(from).elapsedTime(events_.at(to));
}

} // namespace nsa::runtime
