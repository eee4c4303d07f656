#include "common/net/shares.h"

#include <algorithm>

namespace nsa::net {

namespace {
constexpr size_t kRememberedCallers = 1024;
}

void Shares::connect(uint32_t caller) {
  ++shares_[caller].connections;
  ++connections_;
}

void Shares::disconnect(uint32_t caller) {
  --shares_[caller].connections;
  --connections_;
}

std::optional<uint32_t> Shares::who_makes_room(uint32_t caller) const {
  const auto own = shares_.find(caller);
  const size_t has = own == shares_.end() ? 0 : own->second.connections;
  if (has >= limits_.connections_of_one) return caller;
  if (connections_ < limits_.connections) return std::nullopt;
  const auto most =
      std::max_element(shares_.begin(), shares_.end(), [](const auto& a, const auto& b) {
        return a.second.connections < b.second.connections;
      });
  // Who has as many as the greediest gives way itself: else two would push each other out.
  return most->second.connections > has ? most->first : caller;
}

Duration Shares::delay_request(uint32_t caller, MonotonicTime now) {
  if (shares_.size() > kRememberedCallers) forget_idle_callers(now);
  std::optional<TokenBucket>& requests = shares_[caller].requests;
  if (!requests) requests.emplace(limits_.requests_per_second, limits_.request_burst, now);
  return requests->take_ahead(1, now);
}

void Shares::forget_idle_callers(MonotonicTime now) {
  std::erase_if(shares_, [&](const auto& entry) {
    const Share& share = entry.second;
    return share.connections == 0 && (!share.requests || share.requests->is_full(now));
  });
}

} // namespace nsa::net
