// Facts about a live attempt that the state does not hold: the positions of its ranks by their
// progress pages, and the learned limits. Supervision sets them; metrics and views read them.
#pragma once

#include "common/base/clock.h"
#include "common/progress/page.h"
#include "daemon/state/phase_limits.h"
#include "daemon/state/state.h"

#include <compare>
#include <optional>
#include <vector>

namespace nsa::control {

struct AttemptKey {
  RunId run;
  AttemptNumber attempt = 0;
  auto operator<=>(const AttemptKey&) const = default;
};

struct RankPlace {
  std::optional<progress::HostRecord> host;
  progress::DeviceRecord device;
  int64_t pid = 0;
  bool exited = false;
  WallTime last_progress;
};

class LiveAttempt {
public:
  virtual ~LiveAttempt() = default;
  virtual const std::vector<RankPlace>& places() const = 0;
  // Whether all that the shim had told the nsad before us is known here, too.
  virtual bool caught_up() const = 0;
  virtual state::Learned learned() const = 0;
};

class LiveAttempts {
public:
  virtual ~LiveAttempts() = default;
  // Null: nobody supervises it.
  virtual const LiveAttempt* find(const AttemptKey& key) const = 0;
};

} // namespace nsa::control
