// Waits for a condition in a test that drives an event loop itself. The limit is one minute: only a
// broken program takes so long.
#pragma once

#include "common/base/clock.h"
#include "common/net/event_loop.h"

#include <functional>

namespace nsa::test {

// Runs the loop until the condition holds. Returns false if the limit is reached first.
inline bool run_until(net::EventLoop& loop, const std::function<bool()>& holds) {
  const MonotonicTime end = MonotonicTime::now() + std::chrono::minutes(1);
  while (!holds() && MonotonicTime::now() < end)
    loop.run_for(std::chrono::milliseconds(5));
  return holds();
}

} // namespace nsa::test
