// Which messages of a shim are believed. A shim runs as the submitter, and a rank says what it
// likes: neither may fill the ledger, nor speak of ranks that are not there, nor in the name of
// another rank. What is refused is counted, and told now and then. One thread; no I/O.
#pragma once

#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"
#include "daemon/shim/client/rank_quota.h"

#include <string>
#include <vector>

namespace nsa::control {

class MessageGuard {
public:
  // `age` of the attempt: what its ranks may have saved up while nobody listened.
  MessageGuard(const wire::RankQuotas& quotas, int ranks, Duration age, MonotonicTime now);
  bool may_say(const wire::Message& message); // false: refused, and counted
  std::vector<wire::Refused> take_due(MonotonicTime now) { return refusals_.take_due(now); }

private:
  bool names_its_rank(const wire::Message& message);
  void refuse(Rank rank, const std::string& what, const std::string& why);

  int ranks_;
  std::vector<shim::RankQuota> quotas_; // of the ranks, and of the shim itself
  shim::Refusals refusals_;
};

} // namespace nsa::control
