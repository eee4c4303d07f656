// Starts programs. Between the clone and the exec the child makes only async-signal-safe calls
// (argv, envp and paths are prepared before). So launch() is safe in a process with threads, too.
//
// The new process inherits the descriptors that the specification names and no others. A stray copy
// of a listening socket in a rank would keep clients of a dead server waiting.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

// The child's descriptor `to` is a copy of the caller's `from`, which stays open in the caller.
struct DescriptorMapping {
  int from = -1;
  int to = -1;
};

struct LaunchSpec {
  std::vector<std::string> arguments;         // [0] is the program's path; PATH is not searched
  std::vector<std::string> environment;       // "NAME=value"; this is the whole environment
  std::string working_folder;                 // empty: the caller's folder
  std::vector<DescriptorMapping> descriptors; // the child has no other descriptors open
  bool new_process_group = false;
  bool new_session = false; // it implies a process group of its own
  // Signal that the child gets when the thread that started it ends (PR_SET_PDEATHSIG); 0: none.
  // Set it only if the starting thread lives as long as the process.
  int parent_death_signal = 0;
  // Lets the parent and the parent's descendants trace the child where Yama restricts tracing to
  // ancestors (PR_SET_PTRACER; it survives the exec).
  bool traceable_by_parent = false;
  std::optional<int> oom_score_adjust; // raising is always allowed; lowering needs privilege
  int cgroup_fd = -1;                  // an open cgroup v2 folder in which the child starts
};

// A child of this process. The destructor does not reap it: wait for it (process.h).
struct ChildProcess {
  pid_t pid = -1;
  UniqueFd pidfd; // close-on-exec; readable when the child has ended
};

// Returns when the program runs (exec has succeeded) or has failed to start. It reaps a failed
// child. Errors name the step that failed: kNotFound for a missing program or folder, kPermission,
// kSystem.
Result<ChildProcess> launch(const LaunchSpec& spec);

// Like launch(), but the new process becomes a child of init (or of a user's service manager), even
// if the caller is a subreaper. For single-threaded callers only, because the process in between is
// a plain fork. The returned pidfd can be polled, but not waited for.
Result<ChildProcess> launch_detached(const LaunchSpec& spec);

} // namespace nsa::proc
