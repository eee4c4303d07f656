// Limits of the messages and log bytes of one rank per second, and the count of what was refused.
// The shim enforces them for every rank. nsad enforces them again for every shim, since a shim runs
// as the submitter. Pure: the caller passes the time. Not thread-safe.
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
// crowd out another. The start and the end of a rank are milestones, too. A message costs one unit
// for each KiB or part of it.
class RankQuota {
public:
  RankQuota(const wire::RankQuotas& quotas, MonotonicTime now);

  bool take_message(wire::MessageType type, size_t bytes, MonotonicTime now);
  bool take_log(size_t bytes, MonotonicTime now);
  void grant(Duration unwatched); // adds budget for messages of a time when nobody listened

  // class_of() is "steps" or "events". why_not() explains the refusal.
  static const char* class_of(wire::MessageType type);
  std::string why_not(wire::MessageType type) const;
  std::string why_no_log() const;

private:
  wire::RankQuotas quotas_;
  TokenBucket steps_, milestones_, reports_, log_;
};

// Counts refused messages and decides when to report them: at once when refusals begin, then a sum
// every minute.
class Refusals {
public:
  static constexpr Duration kPause = std::chrono::minutes(1);

  void note(Rank rank, const std::string& what, uint64_t count, const std::string& why);
  std::vector<wire::Refused> take_due(MonotonicTime now);
  std::vector<wire::Refused> take_all(MonotonicTime now); // called at the end
  bool waits() const; // whether something is noted and not yet reported

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
