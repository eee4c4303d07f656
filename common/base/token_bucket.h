// A budget that refills at a steady rate up to a maximum. take() refuses what the budget does not
// have. take_ahead() always grants it, and says from when on the budget covers it. Pure: the caller
// passes the time. Not thread-safe.
#pragma once

#include "common/base/clock.h"

#include <algorithm>

namespace nsa {

class TokenBucket {
public:
  static constexpr double kSaved = 60; // seconds of its rate that a bucket holds by default

  // Full at `now`. A rate of 0 or less: no limit.
  TokenBucket(double per_second, MonotonicTime now)
      : TokenBucket(per_second, per_second * kSaved, now) {}
  TokenBucket(double per_second, double holds, MonotonicTime now)
      : per_second_(per_second), holds_(holds), level_(holds), last_(now) {}

  // False: nothing was taken, and `tokens` must not be used. One that is used up gives nothing
  // until a second's worth has come together, so that a flood is cut into few pieces.
  bool take(double tokens, MonotonicTime now) {
    if (per_second_ <= 0) return true;
    refill(now);
    if (dry_ && level_ < per_second_) return false;
    dry_ = level_ < tokens;
    if (!dry_) level_ -= tokens;
    return !dry_;
  }

  // How long from `now` until they are there; who comes next waits behind them.
  Duration take_ahead(double tokens, MonotonicTime now) {
    if (per_second_ <= 0) return {};
    refill(now);
    level_ -= tokens;
    return level_ >= 0 ? Duration{} : from_seconds(-level_ / per_second_);
  }

  bool is_full(MonotonicTime now) const { return level_ + came(now) >= holds_; }

  // For time that nobody watched: its worth may be more than the bucket holds.
  void grant(Duration unwatched) { level_ += per_second_ * std::max(0.0, to_seconds(unwatched)); }

private:
  double came(MonotonicTime now) const {
    return per_second_ * std::max(0.0, to_seconds(now - last_));
  }
  void refill(MonotonicTime now) {
    if (level_ < holds_)
      level_ = std::min(level_ + came(now), holds_); // what was granted beyond it stays
    last_ = std::max(last_, now);
  }

  double per_second_, holds_;
  double level_;
  MonotonicTime last_;
  bool dry_ = false;
};

} // namespace nsa
