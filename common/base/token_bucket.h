// A budget that refills at a steady rate, up to what a minute brings. Once it is used up it gives
// nothing until a second's worth has come together, so that a flood is cut into few pieces. Pure:
// the time comes in. Not thread-safe.
#pragma once

#include "common/base/clock.h"

#include <algorithm>

namespace nsa {

class TokenBucket {
public:
  static constexpr double kSaved = 60; // seconds of the rate that a bucket may hold

  // Full at `now`. A rate of 0 or less: no limit.
  TokenBucket(double per_second, MonotonicTime now)
      : per_second_(per_second), level_(per_second * kSaved), last_(now) {}

  // False: nothing was taken, and `tokens` must not be used.
  bool take(double tokens, MonotonicTime now) {
    if (per_second_ <= 0) return true;
    const double came = per_second_ * std::max(0.0, to_seconds(now - last_));
    // What was granted beyond the limit stays.
    if (level_ < per_second_ * kSaved) level_ = std::min(level_ + came, per_second_ * kSaved);
    last_ = std::max(last_, now);
    if (dry_ && level_ < per_second_) return false;
    dry_ = level_ < tokens;
    if (!dry_) level_ -= tokens;
    return !dry_;
  }

  // For time that nobody watched: its worth is not limited to a minute's.
  void grant(Duration unwatched) { level_ += per_second_ * std::max(0.0, to_seconds(unwatched)); }

private:
  double per_second_;
  double level_;
  MonotonicTime last_;
  bool dry_ = false;
};

} // namespace nsa
