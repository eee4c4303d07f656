#include "bench/model/stopwatch.h"

#include <algorithm>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace nsa::bench {

void Stopwatch::mark() {
  if (device_.is_cpu()) {
    times_.push_back(MonotonicTime::now());
    return;
  }
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT); // the default keeps no time
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  events_.push_back(std::move(event));
}

double Stopwatch::milliseconds(size_t from, size_t to) const {
  if (device_.is_cpu()) return to_seconds(times_.at(to) - times_.at(from)) * 1e3;
  return events_.at(from).elapsedTime(events_.at(to));
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[values.size() / 10], values[values.size() * 9 / 10]};
}

} // namespace nsa::bench
