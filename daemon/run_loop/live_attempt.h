// Facts about a live attempt that the state does not hold: the positions of its ranks, from their
// progress pages, and the learned limits. Supervision sets them; metrics and views read them.
#pragma once

#include "common/base/clock.h"
#include "daemon/state/phase_limits.h"
#include "daemon/state/rank_sample.h"
#include "daemon/state/state.h"

#include <compare>
#include <vector>

namespace nsa::control {

struct AttemptKey {
  RunId run;
  AttemptNumber attempt = 0;
  auto operator<=>(const AttemptKey&) const = default;
};

class LiveAttempt {
public:
  virtual ~LiveAttempt() = default;
  virtual const std::vector<state::RankSample>& samples() const = 0; // in rank order
  // Whether this nsad has received everything that the shim had sent to the previous nsad.
  virtual bool caught_up() const = 0;
  virtual state::Learned learned() const = 0;
};

class LiveAttempts {
public:
  virtual ~LiveAttempts() = default;
  // Null if nobody supervises the attempt.
  virtual const LiveAttempt* find(const AttemptKey& key) const = 0;
};

} // namespace nsa::control
