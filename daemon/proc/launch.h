// Starts programs. The child runs nothing but async-signal-safe calls between the clone and the
// exec (argv, envp and paths are laid out before), so it is right in a process with threads too.
//
// The new process inherits the descriptors that the specification names and no others: a stray
// copy of a listening socket in a rank keeps clients of a dead server waiting.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

// The child's descriptor `to` is the caller's `from`, which stays open in the caller.
struct DescriptorMapping {
  int from = -1;
  int to = -1;
};

struct LaunchSpec {
  std::vector<std::string> arguments;         // [0] is the program's path; PATH is not searched
  std::vector<std::string> environment;       // "NAME=value"; the whole environment
  std::string working_folder;                 // empty: the caller's
  std::vector<DescriptorMapping> descriptors; // all others are closed in the child
  bool new_process_group = false;
  bool new_session = false; // implies a group of its own
  // Sent to the child when the thread that started it ends (PR_SET_PDEATHSIG); 0: none. Only a
  // caller whose starting thread lives as long as the process may ask for it.
  int parent_death_signal = 0;
  // Lets the parent and the parent's descendants trace the child where Yama restricts tracing to
  // ancestors (PR_SET_PTRACER; survives the exec).
  bool traceable_by_parent = false;
  std::optional<int> oom_score_adjust; // raising is always allowed, lowering needs privilege
  int cgroup_fd = -1;                  // an open cgroup v2 folder to start in
};

// A child of this process. Not reaped by its destructor: wait for it (process.h).
struct ChildProcess {
  pid_t pid = -1;
  UniqueFd pidfd; // close-on-exec; readable when the child has ended
};

// Returns once the program runs (exec has succeeded) or has failed to; a failed child is reaped.
// Errors name the step that failed: kNotFound for a missing program or folder, kPermission,
// kSystem.
Result<ChildProcess> launch(const LaunchSpec& spec);

// The same for a process that is to be nobody's child: it is handed to init (or a user's service
// manager) even if the caller is a subreaper. For single-threaded callers only, because the
// process in between is a plain fork. The returned pidfd cannot be waited for, only polled.
Result<ChildProcess> launch_detached(const LaunchSpec& spec);

} // namespace nsa::proc
