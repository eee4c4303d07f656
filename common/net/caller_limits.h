// Divides a server's capacity fairly among its callers: how many connections each may have, and
// when its next request is handled. A caller is a uid. TCP has no uid, so all TCP callers count as
// one.
//
// The caller passes the time. Use it from one thread.
#pragma once

#include "common/base/token_bucket.h"

#include <cstdint>
#include <map>
#include <optional>

namespace nsa::net {

class CallerLimits {
public:
  struct Limits {
    size_t connections = 256, connections_of_one = 32;
    double requests_per_second = 100, request_burst = 200;
  };
  explicit CallerLimits(Limits limits) : limits_(limits) {}

  void connect(uint32_t caller);
  void disconnect(uint32_t caller);
  // Returns whose connection must be closed before `caller` can have another one. This is `caller`
  // itself at its limit, otherwise the caller with most connections. Returns nullopt if there is
  // room.
  std::optional<uint32_t> who_makes_room(uint32_t caller) const;

  // Returns how long this request of `caller` waits. Requests beyond the burst are handled in
  // order, at the rate.
  Duration delay_request(uint32_t caller, MonotonicTime now);

private:
  struct Caller {
    size_t connections = 0;
    std::optional<TokenBucket> requests; // set at its first request
  };
  void forget_idle_callers(MonotonicTime now);

  Limits limits_;
  size_t connections_ = 0;
  std::map<uint32_t, Caller> callers_;
};

} // namespace nsa::net
