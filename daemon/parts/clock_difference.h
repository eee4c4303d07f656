// How far this node's monotonic clock is ahead of another node's. A monotonic clock counts from the
// start of its machine, so its values mean nothing on another machine.
//
// It is learned from times that the other node sends when it reads its clock. Each arrives late by
// the network delay, so the smallest difference is the best estimate. Clocks drift, so an old
// estimate may be too small by now.
#pragma once

#include "common/base/clock.h"

#include <algorithm>
#include <optional>

namespace nsa::parts {

class ClockDifference {
public:
  void note(int64_t theirs_ns, MonotonicTime now) {
    const Duration seen = now - MonotonicTime{theirs_ns};
    const Duration drift = (now - at_) / kMostDrift;
    least_ = least_ && !is_stale_ ? std::min(seen, *least_ + drift) : seen;
    is_stale_ = false;
    at_ = now;
  }
  // The machine may have been restarted, so the next time replaces the estimate.
  void replace_with_next() { is_stale_ = true; }
  // That moment by our clock; nullopt if no time has arrived.
  std::optional<MonotonicTime> here(int64_t theirs_ns) const {
    if (!least_) return std::nullopt;
    return MonotonicTime{theirs_ns + least_->count()};
  }

private:
  static constexpr int kMostDrift = 10'000; // the drift limit: one part in kMostDrift
  std::optional<Duration> least_;
  MonotonicTime at_;
  bool is_stale_ = false;
};

} // namespace nsa::parts
