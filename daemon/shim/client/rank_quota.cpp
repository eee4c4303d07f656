#include "daemon/shim/client/rank_quota.h"

#include <cstdio>

namespace nsa::shim {

namespace {

using wire::Budget;
using wire::MessageType;

Budget budget_of(MessageType type) {
  if (const wire::RankMessageInfo* message = wire::rank_message(type)) return message->budget;
  return type == MessageType::kRankStarted || type == MessageType::kRankExited ? Budget::kMilestones
                                                                               : Budget::kReports;
}

std::string rate(double number, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%g %s", number, unit);
  return text;
}

constexpr double kMebi = 1 << 20;

} // namespace

RankQuota::RankQuota(const wire::RankQuotas& quotas, MonotonicTime now)
    : quotas_(quotas), steps_(quotas.steps_per_second, now),
      milestones_(quotas.events_per_second, now), reports_(quotas.events_per_second, now),
      log_(quotas.log_bytes_per_second, now) {}

bool RankQuota::take_message(MessageType type, size_t bytes, MonotonicTime now) {
  const Budget budget = budget_of(type);
  TokenBucket& bucket = budget == Budget::kSteps        ? steps_
                        : budget == Budget::kMilestones ? milestones_
                                                        : reports_;
  const size_t whole_kib = bytes / 1024;
  return bucket.take(1 + static_cast<double>(whole_kib), now);
}

bool RankQuota::take_log(size_t bytes, MonotonicTime now) {
  return log_.take(static_cast<double>(bytes), now);
}

void RankQuota::grant(Duration unwatched) {
  for (TokenBucket* bucket : {&steps_, &milestones_, &reports_})
    bucket->grant(unwatched);
}

const char* RankQuota::class_of(MessageType type) {
  return budget_of(type) == Budget::kSteps ? "steps" : "events";
}

std::string RankQuota::why_not(MessageType type) const {
  return budget_of(type) == Budget::kSteps
             ? "more than " + rate(quotas_.steps_per_second, "a second (quota.steps_per_second)")
             : "more than " + rate(quotas_.events_per_second, "a second (quota.events_per_second)");
}

std::string RankQuota::why_no_log() const {
  return "more than " +
         rate(quotas_.log_bytes_per_second / kMebi, "MiB a second (quota.log_mib_per_second)");
}

void Refusals::note(Rank rank, const std::string& what, uint64_t count, const std::string& why) {
  Account& account = accounts_[{rank, what}];
  account.count += count;
  account.why = why;
}

std::vector<wire::Refused> Refusals::take(MonotonicTime now, bool all) {
  std::vector<wire::Refused> due;
  for (auto& [key, account] : accounts_) {
    if (account.count == 0) continue;
    if (!all && account.told && now - account.told_at < kPause) continue;
    due.push_back({key.first, key.second, account.count, account.why});
    account.count = 0;
    account.told = true;
    account.told_at = now;
  }
  return due;
}

std::vector<wire::Refused> Refusals::take_due(MonotonicTime now) {
  return take(now, false);
}
std::vector<wire::Refused> Refusals::take_all(MonotonicTime now) {
  return take(now, true);
}

bool Refusals::waits() const {
  for (const auto& [key, account] : accounts_)
    if (account.count > 0) return true;
  return false;
}

} // namespace nsa::shim
