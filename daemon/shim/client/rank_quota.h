// What one rank may say and log a second, and the account of what was not taken from it. The shim
// holds every rank to it, next to the source; nsad holds every shim to it again, since a shim runs
// as the submitter. Pure: times come in. Not thread-safe.
#pragma once

#include "common/base/clock.h"
#include "common/base/token_bucket.h"
#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"

#include <map>
#include <string>
#include <vector>

namespace nsa::shim {

// Each class of messages (wire::Budget) has a budget of its own, so that a flood of one does not
// crowd out another. A rank's start and end are milestones, too. A message costs one for each KiB
// begun.
class RankQuota {
public:
  RankQuota(const wire::RankQuotas& quotas, MonotonicTime now);

  bool take_message(wire::MessageType type, size_t bytes, MonotonicTime now);
  bool take_log(size_t bytes, MonotonicTime now);
  void grant(Duration unwatched); // messages of a time when nobody listened

  // "steps" or "events", and why one of them was not taken.
  static const char* class_of(wire::MessageType type);
  std::string why_not(wire::MessageType type) const;
  std::string why_no_log() const;

private:
  wire::RankQuotas quotas_;
  TokenBucket steps_, milestones_, reports_, log_;
};

// What was refused, and what of it is to be told: at once when it begins, then a sum a minute.
class Refusals {
public:
  static constexpr Duration kPause = std::chrono::minutes(1);

  void note(Rank rank, const std::string& what, uint64_t count, const std::string& why);
  std::vector<wire::Refused> take_due(MonotonicTime now);
  std::vector<wire::Refused> take_all(MonotonicTime now); // at the end
  bool waits() const;                                     // something is noted and not yet told

private:
  struct Account {
    uint64_t count = 0;
    std::string why;
    bool told = false;
    MonotonicTime told_at;
  };
  std::vector<wire::Refused> take(MonotonicTime now, bool all);
  std::map<std::pair<Rank, std::string>, Account> accounts_;
};

} // namespace nsa::shim
