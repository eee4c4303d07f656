// Two clocks that must never be mixed. Monotonic time orders and measures; wall time is for people.
// Pure code takes times as arguments; only code that does I/O calls now().
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>

namespace nsa {

// CLOCK_MONOTONIC in nanoseconds. It is the same in every process since boot, so pages and frames
// can pass it between processes. It stops while the machine is suspended.
struct MonotonicTime {
  int64_t nanoseconds = 0;
  auto operator<=>(const MonotonicTime&) const = default;
  static MonotonicTime now();
};

// CLOCK_REALTIME in nanoseconds since 1970, UTC. May jump.
struct WallTime {
  int64_t nanoseconds = 0;
  auto operator<=>(const WallTime&) const = default;
  static WallTime now();
  double seconds() const { return static_cast<double>(nanoseconds) / 1e9; }
};

using Duration = std::chrono::nanoseconds;

inline Duration operator-(MonotonicTime a, MonotonicTime b) {
  return Duration(a.nanoseconds - b.nanoseconds);
}
inline MonotonicTime operator+(MonotonicTime a, Duration d) {
  return {a.nanoseconds + d.count()};
}
inline Duration operator-(WallTime a, WallTime b) {
  return Duration(a.nanoseconds - b.nanoseconds);
}
inline WallTime operator+(WallTime a, Duration d) {
  return {a.nanoseconds + d.count()};
}

inline double to_seconds(Duration d) {
  return static_cast<double>(d.count()) / 1e9;
}
inline Duration from_seconds(double s) {
  return Duration(static_cast<int64_t>(s * 1e9));
}

// Formats RFC 3339 in UTC with milliseconds: "2026-01-31T09:12:01.123Z".
std::string format_rfc3339(WallTime time);

} // namespace nsa
