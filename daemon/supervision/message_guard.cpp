#include "daemon/supervision/message_guard.h"

namespace nsa::control {

namespace {

int64_t rank_in(const nlohmann::json& body) {
  const auto found = body.is_object() ? body.find("rank") : body.end();
  if (!body.is_object() || found == body.end()) return -1;
  return integer_of<int64_t>(*found).value_or(-1);
}

// The type of a rank's message, which the shim wraps in a message of its own.
wire::MessageType inner_type(const wire::Message& message) {
  const auto inner = message.body.find("type");
  const auto number = inner == message.body.end() ? std::nullopt : integer_of<uint8_t>(*inner);
  return number ? static_cast<wire::MessageType>(*number)
                // It has no valid type, so it counts as a report.
                : wire::MessageType::kRankMessage;
}

} // namespace

MessageGuard::MessageGuard(const wire::RankQuotas& quotas, int ranks, Duration age,
                           MonotonicTime now, Rank first)
    : first_(first), ranks_(ranks) {
  for (int i = 0; i < ranks; ++i)
    quotas_.emplace_back(quotas, now);
  wire::RankQuotas of_all = quotas;
  of_all.events_per_second *= ranks;
  quotas_.emplace_back(of_all, now);
  for (shim::RankQuota& quota : quotas_)
    quota.grant(age);
}

void MessageGuard::refuse(Rank rank, const std::string& what, const std::string& why) {
  refusals_.note(rank, what, 1, why);
}

void MessageGuard::refuse_foreign(Rank rank) {
  refuse(rank, "foreign rank numbers",
         "this run has ranks " + std::to_string(first_) + " to " +
             std::to_string(first_ + ranks_ - 1) + ", and each speaks for itself");
}

bool MessageGuard::names_its_rank(const wire::Message& message) {
  const int64_t rank = rank_in(message.body);
  const int64_t said =
      message.type == wire::MessageType::kRankMessage && message.body.contains("body")
          ? rank_in(message.body["body"])
          : rank;
  if (is_own(rank) && said == rank) return true;
  refuse_foreign(is_own(rank) ? static_cast<Rank>(rank) : first_);
  return false;
}

bool MessageGuard::pays(size_t account, wire::MessageType type, size_t bytes, Rank rank) {
  if (quotas_[account].take_message(type, bytes, MonotonicTime::now())) return true;
  refuse(rank, shim::RankQuota::class_of(type), quotas_[account].why_not(type));
  return false;
}

bool MessageGuard::may_say(const std::optional<wire::RankStep>& step, size_t bytes) {
  if (!step) {
    refuse(first_, "malformed frames", "a step report has other members");
    return false;
  }
  if (is_own(step->rank))
    return pays(static_cast<size_t>(step->rank - first_), wire::MessageType::kRankStep, bytes,
                step->rank);
  refuse_foreign(first_);
  return false;
}

bool MessageGuard::may_say(const wire::Message& message) {
  using wire::MessageType;
  // Evidence is long, comes on request, and becomes an event only if it was requested.
  if (message.type == MessageType::kShimHello || message.type == MessageType::kEvidenceTaken)
    return true;
  if (message.type != MessageType::kLaunchFailed && !names_its_rank(message)) return false;
  const bool of_rank = message.type == MessageType::kRankMessage;
  const size_t account =
      of_rank ? static_cast<size_t>(rank_in(message.body) - first_) : quotas_.size() - 1;
  const MessageType type = of_rank ? inner_type(message) : message.type;
  return pays(account, type, message.bytes, first_ + (of_rank ? static_cast<Rank>(account) : 0));
}

} // namespace nsa::control
