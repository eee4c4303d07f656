// Runs a part of a test in a process of another uid, to test attacks by other accounts. Needs root.
#pragma once

#include <cerrno>
#include <functional>
#include <grp.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace nsa::test {

// The tests create no accounts: a process can have these uids without one.
inline constexpr uid_t kAlice = 61001, kBob = 61002;
inline constexpr gid_t kAdministrators = 61010;

inline bool can_be_others() {
  return ::geteuid() == 0;
}

// Returns the child's pid. The child's exit code is what `body` returns (0 to 255), or 255 if it
// cannot become that user.
inline pid_t start_as(uid_t uid, const std::function<int()>& body, std::vector<gid_t> groups = {}) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (::setgroups(groups.size(), groups.data()) != 0 || ::setresgid(uid, uid, uid) != 0 ||
      ::setresuid(uid, uid, uid) != 0)
    ::_exit(255);
  ::_exit(body());
}

inline int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline int run_as(uid_t uid, const std::function<int()>& body, std::vector<gid_t> groups = {}) {
  return wait_for(start_as(uid, body, std::move(groups)));
}

} // namespace nsa::test
