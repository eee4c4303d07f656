// A cgroup v2 folder for the processes of one attempt. One write to cgroup.kill ends them all,
// however they forked. nsad uses it only if a writable cgroup v2 tree exists (with systemd: a unit
// with Delegate=). Otherwise process groups and the subreaper's sweep do the work. Not thread-safe.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

// Name of the child cgroup that nsad itself moves to. The root must hold no process: otherwise the
// kernel refuses to enable controllers for the folders below it.
inline constexpr const char* kDaemonLeaf = "nsad";

// Moves this process to kDaemonLeaf, if its own cgroup is a writable root. Shims start as its
// children, so they are below the leaf, too. Ranks go into cgroups of their own beside it.
Status leave_cgroup_root();

// For a root process that is about to become `user`. Makes <root>/<name>, gives it to the user as
// cgroups(7) says under "Delegation", and moves this process to <root>/<name>/nsad. The user may
// make cgroups and limits below <name>. The limit of `processes` on <name> itself stays root's, if
// the pids controller is on cgroup v2.
Status enter_delegated_cgroup(const std::filesystem::path& root, const std::string& name,
                              uid_t user, gid_t group, uint64_t processes);

class Cgroup {
public:
  // The cgroup v2 folder of this process, if it exists and is writable. After the move to
  // kDaemonLeaf it is the parent folder. Nullopt otherwise: version 1, a read-only mount in a
  // container, another user's slice.
  static std::optional<std::filesystem::path> find_writable_root();

  // Makes <root>/<name>, or opens it if it exists (when nsad adopts an attempt).
  static Result<Cgroup> open(const std::filesystem::path& root, const std::string& name);

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return folder_.get(); } // value for LaunchSpec::cgroup_fd

  // Limits the processes in the folder and below it: pids.max and memory.max. 0 sets no limit.
  // kUnsupported names a controller that is not delegated to nsad.
  Status limit(uint64_t processes, uint64_t memory_bytes);

  // Sends SIGKILL to every process in the folder and below it. Linux before 5.14 has no
  // cgroup.kill. There it signals the folder's own members by pidfd until a pass finds no new one.
  Status kill();
  Result<std::vector<pid_t>> processes() const;
  // Fails with kConflict while the folder holds processes.
  Status remove();

private:
  Cgroup(std::filesystem::path path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  std::filesystem::path path_;
  UniqueFd folder_;
};

} // namespace nsa::proc
