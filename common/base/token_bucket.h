// A budget that refills at a constant rate up to a maximum. take() refuses what exceeds the budget.
// take_ahead() always grants it, and returns when the budget covers it. The caller passes the time.
// Not thread-safe.
#pragma once

#include "common/base/clock.h"

#include <algorithm>

namespace nsa {

class TokenBucket {
public:
  static constexpr double kSaved = 60; // seconds of its rate that a bucket holds by default

  // The bucket is full at `now`. A rate of 0 or less means no limit.
  TokenBucket(double per_second, MonotonicTime now)
      : TokenBucket(per_second, per_second * kSaved, now) {}
  TokenBucket(double per_second, double holds, MonotonicTime now)
      : per_second_(per_second), holds_(holds), level_(holds), last_(now) {}

  // Returns false if nothing was taken; `tokens` must not be used then. An exhausted bucket gives
  // nothing until it has refilled for one second, so that a flood is cut into few pieces.
  bool take(double tokens, MonotonicTime now) {
    if (per_second_ <= 0) return true;
    refill(now);
    if (dry_ && level_ < per_second_) return false;
    dry_ = level_ < tokens;
    if (!dry_) level_ -= tokens;
    return !dry_;
  }

  // Returns the time from `now` until the tokens are available. Later callers wait until after
  // that.
  Duration take_ahead(double tokens, MonotonicTime now) {
    if (per_second_ <= 0) return {};
    refill(now);
    level_ -= tokens;
    return level_ >= 0 ? Duration{} : from_seconds(-level_ / per_second_);
  }

  bool is_full(MonotonicTime now) const { return level_ + came(now) >= holds_; }

  // Adds the budget of a time without calls; it may exceed the bucket's maximum.
  void grant(Duration unwatched) { level_ += per_second_ * std::max(0.0, to_seconds(unwatched)); }

private:
  double came(MonotonicTime now) const {
    return per_second_ * std::max(0.0, to_seconds(now - last_));
  }
  void refill(MonotonicTime now) {
    if (level_ < holds_)
      level_ = std::min(level_ + came(now), holds_); // an amount granted above the maximum stays
    last_ = std::max(last_, now);
  }

  double per_second_, holds_;
  double level_;
  MonotonicTime last_;
  bool dry_ = false;
};

} // namespace nsa
