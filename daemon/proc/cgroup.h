// A cgroup v2 folder for the processes of one attempt: what is in it dies by one write to
// cgroup.kill, however it forked. Used only where a writable cgroup v2 tree is at hand (under
// systemd: a unit with Delegate=); without one, process groups and the subreaper sweep do.
// No limits are set here. Not thread-safe.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

class Cgroup {
public:
  // The folder of this process's own cgroup v2, if it is there and writable. Nothing otherwise:
  // version 1, a read-only mount in a container, another user's slice.
  static std::optional<std::filesystem::path> find_writable_root();

  // Makes <root>/<name>, or takes it over if it exists (an attempt that is looked after again).
  static Result<Cgroup> open(const std::filesystem::path& root, const std::string& name);

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return folder_.get(); } // for LaunchSpec::cgroup_fd

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
