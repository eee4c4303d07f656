// Decides which messages of a shim nsad believes. A shim runs as the submitter, and a rank may send
// anything. Neither may flood the ledger, name ranks that do not exist, or speak for another rank.
// Refused messages are counted and reported from time to time. One thread; no I/O.
#pragma once

#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"
#include "daemon/shim/client/rank_quota.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

class MessageGuard {
public:
  // `age` of the attempt: its ranks may have saved up messages that long while nobody listened. The
  // ranks are numbered from `first` on.
  MessageGuard(const wire::RankQuotas& quotas, int ranks, Duration age, MonotonicTime now,
               Rank first = 0);
  bool may_say(const wire::Message& message); // false: the message is refused and counted
  // The same for a packed step report. It is absent if its bytes could not be unpacked.
  bool may_say(const std::optional<wire::RankStep>& step, size_t bytes);
  std::vector<wire::Refused> take_due(MonotonicTime now) { return refusals_.take_due(now); }

private:
  bool names_its_rank(const wire::Message& message);
  bool is_own(int64_t rank) const { return rank >= first_ && rank < first_ + ranks_; }
  bool pays(size_t account, wire::MessageType type, size_t bytes, Rank rank);
  void refuse(Rank rank, const std::string& what, const std::string& why);
  void refuse_foreign(Rank rank);

  Rank first_;
  int ranks_;
  std::vector<shim::RankQuota> quotas_; // one for each rank, and one for the shim itself
  shim::Refusals refusals_;
};

} // namespace nsa::control
