#include "daemon/state/policy.h"

#include "common/base/text.h"
#include "daemon/state/xid.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>

namespace nsa::state {

using wire::FailureClass;
using wire::RankExit;

bool is_victim(const RankState& rank) {
  return rank.killed_by_shim || rank.exit_code == static_cast<int>(RankExit::kPeerLost);
}

namespace {
bool ended_badly(const RankState& rank) {
  const bool well = rank.exit_code == 0 && rank.finish_reason == wire::FinishReason::kCompleted;
  return rank.exited && rank.exit_known && !well;
}
} // namespace

bool died_by_itself(const RankState& rank) {
  return ended_badly(rank) && !is_victim(rank);
}

bool is_own_cause(int exit_code) {
  switch (static_cast<RankExit>(exit_code)) {
  case RankExit::kUsage:
  case RankExit::kToggleMismatch:
  case RankExit::kData:
  case RankExit::kNonFinite:
  case RankExit::kOutOfMemory:
  case RankExit::kCheckpoint:
  case RankExit::kGraphs:
    return true;
  case RankExit::kDone:
  case RankExit::kFailed:
  case RankExit::kPeerLost:
    return false;
  }
  return false;
}

std::string exit_text(int exit_code, int signal) {
  if (signal == 0) return "exit " + std::to_string(exit_code);
  const char* name = ::sigabbrev_np(signal);
  return "signal " + std::to_string(signal) +
         (name != nullptr ? " (SIG" + std::string(name) + ")" : std::string());
}

namespace {

FailureClass class_of(const RankState& rank, const Attempt& attempt) {
  if (rank.signal == SIGKILL && attempt.host_out_of_memory) return FailureClass::kHostOutOfMemory;
  if (rank.signal == SIGTERM) return FailureClass::kPreemption;
  if (rank.signal != 0) return FailureClass::kCrash;
  switch (static_cast<RankExit>(rank.exit_code)) {
  case RankExit::kDone:
    // The rank left in good order, but nobody here requested that.
    return rank.finish_reason == wire::FinishReason::kStopped ? FailureClass::kPreemption
                                                              : FailureClass::kCrash;
  case RankExit::kUsage:
  case RankExit::kToggleMismatch:
    return FailureClass::kUserError;
  case RankExit::kData:
    return FailureClass::kData;
  case RankExit::kNonFinite:
    return FailureClass::kNonFinite;
  case RankExit::kOutOfMemory:
    return FailureClass::kGpuOutOfMemory;
  case RankExit::kCheckpoint:
    return FailureClass::kHardware; // storage counts as hardware
  case RankExit::kPeerLost:
    return FailureClass::kNetwork;
  case RankExit::kGraphs:
    return FailureClass::kGraphs;
  case RankExit::kFailed:
    break;
  }
  return FailureClass::kCrash;
}

std::string death_text(Rank number, const RankState& rank) {
  std::string text =
      "rank " + std::to_string(number) + " ended with " + exit_text(rank.exit_code, rank.signal);
  if (!rank.error.empty()) text += ": " + rank.error;
  if (rank.error.empty() && rank.exit_code == 0 && !rank.finished)
    text += " without having finished";
  return text;
}

// The earliest death that counts. If two have the same time, the lower rank wins.
std::optional<Rank> first_death(const Attempt& attempt, bool victims_too) {
  std::optional<Rank> first;
  for (size_t i = 0; i < attempt.ranks.size(); ++i) {
    const RankState& rank = attempt.ranks[i];
    if (!(victims_too ? ended_badly(rank) : died_by_itself(rank))) continue;
    if (!first || rank.exit_order < attempt.ranks[static_cast<size_t>(*first)].exit_order)
      first = static_cast<Rank>(i);
  }
  return first;
}

// splitmix64: a well-mixed value from a seed and a counter.
double unit_random(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

} // namespace

Failure classify(const Attempt& attempt) {
  // A hardware error explains a death or a hang better than its symptoms.
  if (const auto& error = attempt.hardware_error)
    return {FailureClass::kHardware, error->rank,
            "GPU error of rank " + std::to_string(error->rank) + ": Xid " +
                std::to_string(error->xid) + ", " + xid_meaning(error->xid).text + " (" +
                error->uuid + ")",
            "look at nvidia-smi and at the kernel's log; the GPU may have to be reset or replaced"};
  if (attempt.failure) {
    Failure known{*attempt.failure, -1, attempt.failure_text, ""};
    return known;
  }
  // A rank reported this cause first. The later deaths, its own included, say less. Peers of a rank
  // that ends slowly may fail with errors of their own.
  if (attempt.told) {
    RankState rank = attempt.ranks[static_cast<size_t>(attempt.told->rank)];
    rank.exit_code = attempt.told->exit_code;
    rank.signal = 0;
    return {class_of(rank, attempt), attempt.told->rank, death_text(attempt.told->rank, rank),
            rank.error_next};
  }
  if (const auto cause = first_death(attempt, false)) {
    const RankState& rank = attempt.ranks[static_cast<size_t>(*cause)];
    return {class_of(rank, attempt), *cause, death_text(*cause, rank), rank.error_next};
  }
  if (const auto victim = first_death(attempt, true)) {
    const RankState& rank = attempt.ranks[static_cast<size_t>(*victim)];
    // A collective failed and no earlier death explains it, so the connection failed.
    return {FailureClass::kNetwork, rank.blamed_peer.value_or(-1), death_text(*victim, rank),
            "look at the network between the ranks"};
  }
  return {FailureClass::kSupervisor, -1, "the ranks' ends are not known", ""};
}

bool total_budget_spent(const Run& run, WallTime now) {
  const auto of_all = std::count_if(run.restarts.begin(), run.restarts.end(),
                                    [&](const Restart& r) { return now - r.at < kTotalWindow; });
  return of_all >= run.policy.max_total_restarts;
}

Decision decide_restart(const Run& run, FailureClass failure, WallTime now) {
  if (failure == FailureClass::kUserError)
    return {false, {}, "a mistake in the run is not retried"};
  if (failure == FailureClass::kData)
    return {false, {}, "data that are missing or damaged are not retried"};
  if (failure == FailureClass::kNonFinite) return {false, {}, "train.non_finite says stop"};
  const Policy& policy = run.policy;
  if (failure == FailureClass::kPreemption && policy.preemption_is_free)
    return {true, from_seconds(policy.delay_seconds), "its scheduler takes its nodes away"};
  int of_class = 0, of_all = 0;
  for (const Restart& r : run.restarts) {
    if (r.failure == FailureClass::kPreemption && policy.preemption_is_free) continue;
    if (now - r.at < kTotalWindow) ++of_all;
    // Restarts before a rung was taken do not count.
    const bool since = !run.standing.changed_at || r.at > *run.standing.changed_at;
    if (r.failure == failure && since && now - r.at < from_seconds(policy.window_seconds))
      ++of_class;
  }
  if (run.without_progress >= policy.max_without_progress)
    return {false,
            {},
            std::to_string(run.without_progress) +
                " attempts in a row reached no new checkpoint (restart.max_without_progress)"};
  if (of_class >= policy.max_restarts)
    return {false,
            {},
            std::to_string(of_class) + " restarts after " + text_of(failure) + " within " +
                format_duration(policy.window_seconds) + " (restart.max_restarts)"};
  if (of_all >= policy.max_total_restarts)
    return {
        false, {}, std::to_string(of_all) + " restarts within 24h (restart.max_total_restarts)"};
  const double base =
      std::min(policy.max_delay_seconds, policy.delay_seconds * std::exp2(of_class));
  const double jitter = 0.75 + 0.5 * unit_random(policy.jitter_seed, run.restarts.size());
  return {true, from_seconds(base * jitter),
          "restart " + std::to_string(of_class + 1) + " of at most " +
              std::to_string(policy.max_restarts) + " after " + text_of(failure)};
}

} // namespace nsa::state
