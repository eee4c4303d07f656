#include "daemon/control/loop_delay.h"

#include <algorithm>
#include <vector>

namespace nsa::control {

Duration LoopDelay::tick(MonotonicTime now) {
  const Duration late = std::max(now - due_, Duration::zero());
  late_[ticks_++ % kKept] = static_cast<float>(to_seconds(late));
  due_ = due_ + interval_ > now ? due_ + interval_ : now + interval_;
  return late;
}

nlohmann::json LoopDelay::summary() const {
  std::vector<float> sorted(
      late_.begin(), late_.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(ticks_, kKept)));
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) {
    return sorted.empty()
               ? 0.0F
               : sorted[std::min(sorted.size() - 1,
                                 static_cast<size_t>(share * static_cast<double>(sorted.size())))];
  };
  return {{"ticks", sorted.size()}, {"p50", at(0.5)}, {"p99", at(0.99)}, {"max", at(1)}};
}

} // namespace nsa::control
