// A cgroup v2 folder for the processes of one attempt. One write to cgroup.kill ends them all,
// however they forked. Used only if a writable cgroup v2 tree exists (under systemd: a unit
// with Delegate=). Otherwise process groups and the subreaper's sweep do the work. Not
// thread-safe.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

// Where nsad itself goes in its root, so that the root holds no process: the kernel lets nobody
// give controllers to the folders of one that does.
inline constexpr const char* kDaemonLeaf = "nsad";

// Moves this process there, if a writable root is its own cgroup. Shims start as its children, and
// so below the leaf, too; ranks go into cgroups of their own beside it.
Status leave_cgroup_root();

// For a process of root that is about to become `user`: makes <root>/<name>, gives it to the user
// as cgroups(7) says under "Delegation", and moves this process to <root>/<name>/nsad. Below <name>
// the user makes cgroups and limits as he likes. The limit of `processes` on <name> itself stays
// root's, where the kernel gives that controller to version 2.
Status enter_delegated_cgroup(const std::filesystem::path& root, const std::string& name,
                              uid_t user, gid_t group, uint64_t processes);

class Cgroup {
public:
  // The folder of this process's own cgroup v2, or the one above where this process has moved to
  // kDaemonLeaf, if it is there and writable. Nothing otherwise: version 1, a read-only mount in a
  // container, another user's slice.
  static std::optional<std::filesystem::path> find_writable_root();

  // Makes <root>/<name>, or takes it over if it exists (an attempt that is looked after again).
  static Result<Cgroup> open(const std::filesystem::path& root, const std::string& name);

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return folder_.get(); } // for LaunchSpec::cgroup_fd

  // Limits what is in it and below: pids.max and memory.max; 0 sets none. kUnsupported names a
  // controller that is not delegated to us.
  Status limit(uint64_t processes, uint64_t memory_bytes);

  // Everything in it and below gets SIGKILL. Before Linux 5.14 there is no cgroup.kill: then each
  // member, by pidfd, until a pass finds none.
  Status kill();
  Result<std::vector<pid_t>> processes() const;
  // kConflict while processes are left in it.
  Status remove();

private:
  Cgroup(std::filesystem::path path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  std::filesystem::path path_;
  UniqueFd folder_;
};

} // namespace nsa::proc
