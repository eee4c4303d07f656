#include "common/base/clock.h"

#include <cstdio>
#include <ctime>

namespace nsa {

namespace {
int64_t read_clock(clockid_t id) {
  timespec ts{};
  clock_gettime(id, &ts);
  return static_cast<int64_t>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}
} // namespace

MonotonicTime MonotonicTime::now() {
  return {read_clock(CLOCK_MONOTONIC)};
}
WallTime WallTime::now() {
  return {read_clock(CLOCK_REALTIME)};
}

std::string format_rfc3339(WallTime time) {
  const time_t seconds = static_cast<time_t>(time.nanoseconds / 1'000'000'000);
  const int milliseconds = static_cast<int>(time.nanoseconds / 1'000'000 % 1000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[80];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                milliseconds);
  return text;
}

} // namespace nsa
