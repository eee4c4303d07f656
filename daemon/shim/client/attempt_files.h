// Names of the files that a shim keeps in its attempt folder, shared by the shim and its client.
#pragma once

#include "common/base/checksum.h"
#include "common/base/ids.h"
#include "common/base/local_socket.h"
#include "common/wire/launch_plan.h"

#include <string>

namespace nsa::shim {

inline constexpr const char* kLaunchName = "launch.json"; // the plan, written by nsad
// Identities of shim and ranks, written by the shim.
inline constexpr const char* kStartedName = "started.json";
inline constexpr const char* kSocketName = "shim.sock";
inline constexpr const char* kLockName = "shim.lock";     // locked while a shim lives
inline constexpr const char* kSpillName = "outbox.spill"; // messages that do not fit in memory
inline constexpr const char* kEvidenceFolder = "evidence";

// Descriptors that a shim inherits: a pidfd of the nsad that starts it and, on several nodes, the
// listening socket of rank 0's store.
inline constexpr int kShimNsadFd = 3, kShimStoreFd = 4;

inline std::string exit_name(Rank rank) {
  return "exit-" + std::to_string(rank) + ".json";
}

// The name does not begin with NSA_, because such names are toggles, and workers refuse toggles
// that they do not know.
inline std::string attempt_mark(const std::string& token) {
  return wire::kAttemptMark + ("=" + checksum_hex(token));
}

inline std::string part_mark(const wire::LaunchPlan& plan) {
  return wire::kPartMark + ("=" + checksum_hex(plan.token + plan.attempt_folder));
}

// Nodes that share a host need one cgroup each, because a part that ends kills its whole cgroup.
inline std::string cgroup_name(const wire::LaunchPlan& plan) {
  const std::string name = "nsa-" + plan.run_id + "-" + std::to_string(plan.attempt);
  if (plan.ranks.empty() || plan.ranks.front().rank == 0) return name;
  return name + "-from-rank-" + std::to_string(plan.ranks.front().rank);
}

inline sockaddr_un socket_address(int folder_fd) {
  return address_in_folder(folder_fd, kSocketName);
}

} // namespace nsa::shim
