// How far this node's monotonic clock is ahead of another node's. It counts from the start of a
// machine, so that of another one says nothing by itself.
//
// Learned from times that the node sends as it reads them: each came later by the way here, so the
// least difference is the best one. Clocks drift, so an older one may be too small by now.
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
  // The machine may have been started anew: what it says next counts alone.
  void replace_with_next() { is_stale_ = true; }
  // That moment by our clock; nothing: nothing was heard.
  std::optional<MonotonicTime> here(int64_t theirs_ns) const {
    if (!least_) return std::nullopt;
    return MonotonicTime{theirs_ns + least_->count()};
  }

private:
  static constexpr int kMostDrift = 10'000; // one part in so many
  std::optional<Duration> least_;
  MonotonicTime at_;
  bool is_stale_ = false;
};

} // namespace nsa::parts
