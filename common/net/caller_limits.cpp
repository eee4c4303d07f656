#include "common/net/caller_limits.h"

#include <algorithm>

namespace nsa::net {

namespace {
constexpr size_t kRememberedCallers = 1024;
}

void CallerLimits::connect(uint32_t caller) {
  ++callers_[caller].connections;
  ++connections_;
}

void CallerLimits::disconnect(uint32_t caller) {
  --callers_[caller].connections;
  --connections_;
}

std::optional<uint32_t> CallerLimits::who_makes_room(uint32_t caller) const {
  const auto own = callers_.find(caller);
  const size_t has = own == callers_.end() ? 0 : own->second.connections;
  if (has >= limits_.connections_of_one) return caller;
  if (connections_ < limits_.connections) return std::nullopt;
  const auto most =
      std::max_element(callers_.begin(), callers_.end(), [](const auto& a, const auto& b) {
        return a.second.connections < b.second.connections;
      });
  // A caller with as many connections as the largest one must close its own. Otherwise two such
  // callers would close each other's in turn.
  return most->second.connections > has ? most->first : caller;
}

Duration CallerLimits::delay_request(uint32_t caller, MonotonicTime now) {
  if (callers_.size() > kRememberedCallers) forget_idle_callers(now);
  std::optional<TokenBucket>& requests = callers_[caller].requests;
  if (!requests) requests.emplace(limits_.requests_per_second, limits_.request_burst, now);
  return requests->take_ahead(1, now);
}

void CallerLimits::forget_idle_callers(MonotonicTime now) {
  std::erase_if(callers_, [&](const auto& entry) {
    const Caller& idle = entry.second;
    return idle.connections == 0 && (!idle.requests || idle.requests->is_full(now));
  });
}

} // namespace nsa::net
